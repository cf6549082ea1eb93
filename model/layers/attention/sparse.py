"""DSA whose output is kept by code of ours where a path asks for it."""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.experimental_attention_variant import dsa

from model.kinds import dsa as kind
from model.layers.attention import logits
from model.layers.attention.kept import KeptSparseMLA
from model.patched import seams


class SparseAttention(dsa.DSAttention):
    """Upstream's sparse attention; under "kept" ``kept.KeptSparseMLA`` is in the place of its kernels' function."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Upstream's forward, with its arguments and result: query [T, 1, heads, D], key [T, 1, 1, D], …"""
        logits.note(self, self.config, args[0], args[1], kwargs["packed_seq_params"], self.softmax_scale)
        if self.config.model_paths["sparse"].name != "kept":
            return super().forward(*args, **kwargs)
        from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

        seams.verify(kind.SPARSE_KEPT)
        with seams.replaced(tilelang_dsa, "SparseMLA", KeptSparseMLA):
            return super().forward(*args, **kwargs)
