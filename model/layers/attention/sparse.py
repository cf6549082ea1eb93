"""DSA whose indexer's loss, and whose kept output, are by kernels of ours where a path asks for them."""

from __future__ import annotations

import contextlib
from typing import Any

from megatron.core.transformer.experimental_attention_variant import dsa

from model.kinds import dsa as kind
from model.layers.attention import logits
from model.layers.attention.kept import KeptSparseMLA
from model.patched import seams


class SparseAttention(dsa.DSAttention):
    """Upstream's sparse attention; under "triton" ``divergence.KernelLoss`` computes its indexer's loss."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Upstream's forward, with its arguments and result: query [T, 1, heads, D], key [T, 1, 1, D], …"""
        logits.note(self, self.config, args[0], args[1], kwargs["packed_seq_params"], self.softmax_scale)
        paths = self.config.nam56r_paths
        with contextlib.ExitStack() as within:
            if paths["indexer"].name == "triton":
                from model.layers.attention import divergence  # imports Triton

                loss = divergence.KernelLoss(self.config.nam56r_row)
                within.enter_context(seams.replaced(dsa, "FusedDSAIndexerLoss", loss))
                if hasattr(dsa, "packed_indexer_loss"):  # of pack 52, which takes long batches by blocks of queries
                    within.enter_context(seams.replaced(dsa, "packed_indexer_loss", loss.packed))
            if paths["sparse"].name == "kept":
                from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

                seams.verify(kind.SPARSE_KEPT)
                within.enter_context(seams.replaced(tilelang_dsa, "SparseMLA", KeptSparseMLA))
            return super().forward(*args, **kwargs)
