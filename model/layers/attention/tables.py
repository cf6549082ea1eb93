"""The angles of a packed batch's tokens, found once: they are the same in every layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from model.layers.attention.rotary import Rotate, Tables, turned


class Packed:
    """``upstream``, Megatron's ``_apply_rotary_pos_emb_thd``, which finds the angles of a batch's tokens in some twenty
    operators, for each layer's queries and again for its keys: here once for the same lengths and frequencies.

    The first call is upstream's; what ``rotating`` tells of it (``keep``) stays with the tensor of the lengths, for
    calls of equal arguments but the numbers of ``t``. A CUDA graph's capture is left to upstream, whose operators must
    be in it.
    """

    def __init__(self, upstream: Rotate) -> None:
        self.upstream = upstream
        self._made: list[Tables] = []

    def keep(self, tables: Tables) -> None:
        """Be told of the tables that a call made."""
        self._made.append(tables)

    def __call__(self, t: Tensor, cu_seqlens: Tensor, freqs: Tensor, *rest: Any, **more: Any) -> Tensor:
        """t [T, H, D], cu_seqlens [D + 1], freqs [P, 1, 1, D] -> [T, H, D]."""
        if _capturing(t) or any(map(_untracked, (cu_seqlens, freqs))):
            return self.upstream(t, cu_seqlens, freqs, *rest, **more)
        place = freqs.data_ptr(), tuple(freqs.shape), freqs.stride(), freqs._version, cu_seqlens._version
        asked = place, t.shape[0], t.shape[-1], t.dtype, rest, tuple(sorted(more.items()))
        kept: dict[Any, tuple[Tensor, Tables]] = cu_seqlens.__dict__.setdefault("_rotary_tables", {})
        if asked in kept:
            return turned(t.unsqueeze(1), kept[asked][1]).squeeze(1)
        self._made.clear()
        out = self.upstream(t, cu_seqlens, freqs, *rest, **more)
        if len(self._made) == 1:
            kept[asked] = freqs, self._made[0]  # with freqs, whose place no other tensor takes while it is here
        self._made.clear()
        return out


def _capturing(t: Tensor) -> bool:
    return t.device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def _untracked(x: Tensor) -> bool:
    """Whether changes of x leave no trace, or what is made of it now cannot be kept for a backward pass."""
    return bool(x.is_inference()) or torch.is_inference_mode_enabled()


def share(model: nn.Module) -> None:
    """Have attention layers whose rotary embeddings are alike use one, so that their frequencies are one tensor."""
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
