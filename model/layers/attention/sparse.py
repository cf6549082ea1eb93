"""DSA that trains its indexer row by row, for a stream of whole rows of one length.

Upstream scores every query of a packed stream against every key, then masks the keys of other documents. No document
spans two rows here, so one in R of R rows' scores can count: a row at a time takes an Rth of the work and of the
launches for the same choice, loss and gradients.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from megatron.core.transformer.experimental_attention_variant import dsa
from torch import Tensor

from model.kinds import dsa as kind
from model.layers.attention import logits
from model.layers.attention.kept import KeptSparseMLA
from model.patched import seams


class RowLoss:
    """Stands in for upstream's ``FusedDSAIndexerLoss`` (megatron-core 0.19.0, dsa.py:886) and calls it for each row."""

    def __init__(self, whole: Any, row: int) -> None:
        self.whole, self.row = whole, row

    def apply(
        self,
        q: Tensor,
        weights: Tensor,
        k: Tensor,
        query: Tensor,
        key: Tensor,
        scale: float,
        topk: int,
        coeff: float,
        mask: Tensor | None,
        sparse: bool,
        groups: Any,
        starts: Tensor | None,
        ends: Tensor | None,
        positions: Tensor | None,
        valid_rows: Tensor | None,
        per_token: bool,
        use_relu: bool,
    ) -> tuple[Tensor, Tensor]:
        """Indices of the chosen keys [1, T, topk] int64, -1 where there is none, and the loss, a fp32 scalar.

        q [T, 1, index heads, d], weights [T, 1, index heads], k [T, 1, d]; query, key [T, 1, heads, D]; starts, ends
        [T], the first key that a query may choose and the key after its last; positions [T] of the keys. Raises
        ValueError for another kind of loss, and for T not a multiple of the row.
        """
        if mask is not None or starts is None or ends is None or valid_rows is not None or per_token:
            raise ValueError("indexer=rows takes packed documents and a loss that is a mean over tokens")
        if len(q) % self.row:
            raise ValueError(f"a stream of {len(q)} tokens is not rows of {self.row}")
        chosen, losses = [], []
        for at in range(0, len(q), self.row):
            of_row = slice(at, at + self.row)
            indices, loss = self.whole.apply(
                q[of_row],
                weights[of_row],
                k[of_row],
                query[of_row],
                key[of_row],
                scale,
                topk,
                coeff,
                None,
                sparse,
                groups,
                starts[of_row] - at,
                ends[of_row] - at,
                None if positions is None else positions[of_row] - at,
                None,
                per_token,
                use_relu,
            )
            chosen.append(indices + at * (indices >= 0))
            losses.append(loss)
        return torch.cat(chosen, dim=1), torch.stack(losses).mean()


class SparseAttention(dsa.DSAttention):
    """Upstream's sparse attention; under "triton" ``divergence.KernelLoss`` computes its indexer's loss, under "rows"
    ``RowLoss``."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Upstream's forward, with its arguments and result: query [T, 1, heads, D], key [T, 1, 1, D], …"""
        logits.note(self, self.config, args[0], args[1], kwargs["packed_seq_params"], self.softmax_scale)
        paths = self.config.nam56r_paths
        with contextlib.ExitStack() as within:
            if paths["indexer"].name != "stream":
                seams.verify(kind.INDEXER_ROWS)
                within.enter_context(seams.replaced(dsa, "FusedDSAIndexerLoss", self._loss(dsa.FusedDSAIndexerLoss)))
            if paths["sparse"].name == "kept":
                from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

                seams.verify(kind.SPARSE_KEPT)
                within.enter_context(seams.replaced(tilelang_dsa, "SparseMLA", KeptSparseMLA))
            return super().forward(*args, **kwargs)

    def _loss(self, whole: Any) -> Any:
        """What takes the place of ``whole``, upstream's loss."""
        if self.config.nam56r_paths["indexer"].name == "rows":
            return RowLoss(whole, self.config.nam56r_row)
        from model.layers.attention import divergence  # imports Triton

        return divergence.KernelLoss(self.config.nam56r_row)
