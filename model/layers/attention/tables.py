"""The angles of packed tokens, found once a forward: they are the same in every layer.

Megatron finds them for each layer's queries and again for its keys, in some twenty operators
(``_apply_rotary_pos_emb_thd``, megatron/core/models/common/embeddings/rope_utils.py @
5be9626709af2722333bf54797c954c09edeada3, as pack 33 leaves it): where the host launches slower than the GPU works, a
fifth of what NAM56R's forward pass launches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from model.kinds import mla as kind
from model.layers.attention.rotary import Rotate, Tables, rotating, turned
from model.layers.common import documents
from model.patched import seams


class Packed:
    """``upstream``, Megatron's ``_apply_rotary_pos_emb_thd``, whose tables are kept for calls alike but for ``t``'s
    numbers and heads and the order of its pairs.

    The first such call is upstream's, which turns tokens by ``rotating``: ``told`` is to hear of its tables.
    """

    def __init__(self, upstream: Rotate) -> None:
        self.upstream = upstream
        self._tables: list[Tables] | None = None  # of upstream's call under way

    def told(self, tables: Tables) -> None:
        if self._tables is not None:  # what is not packed turns by ``rotating`` alone
            self._tables.append(tables)

    def __call__(
        self, t: Tensor, cu_seqlens: Tensor, freqs: Tensor, mla_rotary_interleaved: bool = False, **more: Any
    ) -> Tensor:
        """t [T, H, D], cu_seqlens [documents + 1], freqs [P, 1, 1, D] -> [T, H, D]; keywords as Megatron names them."""
        named = {"mla_rotary_interleaved": mla_rotary_interleaved, **more}
        if freqs.is_inference():  # such a tensor counts no versions
            return self.upstream(t, cu_seqlens, freqs, **named)
        # A layer may take a part of the table anew in each call: the part's place tells, while the kept one holds it
        place = freqs.data_ptr(), freqs.shape, freqs.stride(), freqs.dtype, freqs.device, freqs._version
        asked = "rotary", place, t.shape[0], t.shape[-1], t.dtype, tuple(sorted(more.items()))
        _, kept = documents.once(cu_seqlens, asked, lambda: (freqs, list[Tables]()))
        if kept:
            return turned(t.unsqueeze(1), kept[0], mla_rotary_interleaved).squeeze(1)
        self._tables = made = list[Tables]()
        try:
            out = self.upstream(t, cu_seqlens, freqs, **named)
        finally:
            self._tables = None
        if len(made) == 1:  # not sequence by sequence, as without pack 33
            kept.extend(made)
        return out


def of(angles: Tensor, cu_seqlens: Tensor, tokens: int, dtype: torch.dtype) -> Tables:
    """Cosines and sines [tokens, 1, 1, D] of each token's place in its document, found once a forward.

    angles [P, 1, 1, D] fp32 of places below P, cu_seqlens [documents + 1] int32. Raises ValueError as
    ``documents.check``.
    """

    def make() -> tuple[Tensor, Tables]:
        own = angles[documents.positions(cu_seqlens, tokens)]
        return angles, (own.cos().to(dtype), own.sin().to(dtype))  # the angles too: while kept, their place is theirs

    return documents.once(cu_seqlens, ("angles", angles.data_ptr(), angles.shape, tokens, dtype), make)[1]


def stand_in() -> None:
    """In the whole process, Megatron's rotary embedding is by the kernel, and its tables are kept while bounds live."""

    from megatron.core.models.common.embeddings import rope_utils

    seams.verify(kind.ROTARY)
    seams.verify(kind.ROTARY_TABLES)
    if not isinstance(rope_utils._apply_rotary_pos_emb_thd, Packed):  # once a process
        made = Packed(rope_utils._apply_rotary_pos_emb_thd)
        rope_utils._apply_rotary_pos_emb_thd = made
        rope_utils._apply_rotary_pos_emb_bshd = rotating(rope_utils._apply_rotary_pos_emb_bshd, made.told)


def share(model: nn.Module) -> None:
    """Attention layers whose rotary embeddings are alike have one, so that their frequencies are one tensor."""
    different: list[nn.Module] = []
    for module in list(model.modules()):
        own = getattr(module, "rotary_pos_emb", None)
        if isinstance(own, nn.Module):
            same = next((other for other in different if _alike(own, other)), None)
            if same is None:
                different.append(own)
            else:
                module.rotary_pos_emb = same


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether both are of one class and hold the same, in attributes: what a state dict names is never shared."""
    mine, theirs = vars(one), vars(other)
    if type(one) is not type(other) or mine.keys() != theirs.keys() or [*one.state_dict(), *one.children()]:
        return False
    pairs = ((mine[name], theirs[name]) for name in mine)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b) for a, b in pairs)
