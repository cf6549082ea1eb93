"""DeepSeek-V4's attention: one latent for keys and values, a window, and compressed entries of three kinds of layers.

ratio 0 is sliding attention; a ratio with an indexer is compressed sparse attention (CSA), which attends to the entries
that the indexer chooses; one without is heavily compressed attention (HCA), which attends to all that a token may see.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from model.exported.step import Linear
from model.layers.common import documents, fp32
from model.layers.common.norm import WideRMSNorm, rms_norm
from model.layers.deepseek_v4 import indexer
from model.layers.deepseek_v4.compressor import Compressor, Visible, windows
from model.layers.deepseek_v4.core import core_attention
from model.layers.deepseek_v4.rotary import COMPRESSED, PLAIN, Rope, Table, rotate


@dataclass(frozen=True)
class Index:
    """The indexer's heads, their width, and how many entries a token attends to."""

    heads: int
    width: int
    topk: int


@dataclass(frozen=True)
class Shape:
    """Of one layer: ``ratio`` tokens to a compressed entry, 0 for none; ``index`` of a CSA layer alone. A layer with
    compression rotates by ``compress_rope``, all of it, one without by ``rope``."""

    hidden: int
    heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int = 0
    index: Index | None = None
    rope: Rope = PLAIN
    compress_rope: Rope = COMPRESSED
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Raises ValueError for what no layer can be."""
        if self.heads % self.o_groups:
            raise ValueError(f"{self.heads} heads do not make {self.o_groups} output groups")
        if self.window < 1 or self.ratio < 0:
            raise ValueError(f"a window of {self.window} and a ratio of {self.ratio}: the least are 1 and 0")
        if self.index and not self.ratio:
            raise ValueError("an indexer chooses among compressed entries, and ratio 0 makes none")


@dataclass(frozen=True)
class Attended:
    """A layer's output [T, 1, d] and what it made on the way: compressed ``entries`` [E, D], the slots ``chosen``
    [T, k] of a CSA layer, and each token's ``index_loss`` [T] where it was asked for."""

    output: Tensor
    entries: Tensor | None = None
    chosen: Tensor | None = None
    index_loss: Tensor | None = None


def grouped_output(x: Tensor, down: Tensor, groups: int) -> Tensor:
    """The low-rank product of each group of heads: x [T, H, D], down [G Lo, H D / G] -> [T, G Lo].

    Group g has heads g H/G and on.
    """
    out: Tensor = _GroupedOutput.apply(x.reshape(len(x), groups, -1), down.unflatten(0, (groups, -1)))
    return out.flatten(1)


class _GroupedOutput(torch.autograd.Function):  # type: ignore[misc]
    """x [T, G, I], weights [G, R, I] -> [T, G, R]; no operand is copied to have its groups first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        return _by_group(x, weights.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor]:
        x, weights = ctx.saved_tensors
        return _by_group(above, weights), torch.bmm(above.permute(1, 2, 0), x.transpose(0, 1))


def _by_group(x: Tensor, matrices: Tensor) -> Tensor:
    """x [T, G, n] times matrices [G, n, m]: [T, G, m]."""
    out = x.new_empty(len(x), *matrices.shape[::2])
    torch.bmm(x.transpose(0, 1), matrices, out=out.transpose(0, 1))
    return out


class CoreAttention(nn.Module):  # type: ignore[misc]
    """What a layer attends with beside its window: the sink, the compressor where it owns its entries, CSA's indexer.

    ``attn_sink`` [H] starts at 0 and stays fp32 (``fp32.keep``). ``kernels``: ``hybrid.kernels`` where they compute
    what the layer does with rows, windows and entries.
    """

    def __init__(self, shape: Shape, rope: Rope, owner: bool) -> None:
        super().__init__()
        self.shape = shape
        self.kernels: ModuleType | None = None
        self.attn_sink = fp32.keep(nn.Parameter(torch.empty(shape.heads, dtype=torch.float32)))
        self.compressor: Compressor | None = None
        self.indexer: indexer.Indexer | None = None
        if shape.ratio and owner:
            overlap = shape.index is not None
            self.compressor = Compressor(shape.hidden, shape.head_dim, shape.ratio, overlap, rope, shape.eps)
        if shape.index:
            i = shape.index
            sizes = shape.hidden, shape.q_lora_rank, i.heads, i.width, i.topk, shape.ratio
            self.indexer = indexer.Indexer(*sizes, rope, shape.eps)

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        nn.init.zeros_(self.attn_sink)
        for module in self.children():
            module.reset_parameters()

    def visible(
        self, x: Tensor, latent: Tensor, cu_seqlens: Tensor, dense: bool
    ) -> tuple[Visible | None, indexer.Projected | None]:
        """Which compressed entries each token sees, and what its indexer makes of the tokens; None without them."""
        if not self.shape.ratio:
            return None, None
        found = windows(cu_seqlens, len(x), self.shape.ratio)
        visible = Visible(found.begin, found.seen)
        if self.indexer is None:
            return visible, None
        projected = self.indexer(x, latent, cu_seqlens)
        if not dense:
            select = indexer.select if self.kernels is None else self.kernels.select
            visible = Visible(found.begin, found.seen, select(projected, visible, self.indexer.topk))
        return visible, projected

    def entries(self, x: Tensor, cu_seqlens: Tensor, given: Tensor | None) -> Tensor | None:
        """The compressed entries [E, D], ``given`` or this layer's own; None without compression."""
        if given is not None:
            wanted = [len(x) // self.shape.ratio, self.shape.head_dim] if self.shape.ratio else "none"
            if list(given.shape) != wanted:
                raise ValueError(f"another layer's entries must be {wanted} here, not {list(given.shape)}")
            return given
        if self.compressor is None and self.shape.ratio:
            raise ValueError("this layer owns no compressed entries: give it those of the layer that does")
        return None if self.compressor is None else self.compressor(x, cu_seqlens)


class Attention(nn.Module):  # type: ignore[misc]
    """hidden [T, 1, d] -> [T, 1, d]; documents do not see one another.

    A layer that does not own compressed entries (``owner`` false) has no compressor: it is given another layer's, as in
    DeepSeek-V4.1.
    """

    def __init__(self, shape: Shape, owner: bool = True) -> None:
        super().__init__()
        self.shape, self.rope = shape, shape.compress_rope if shape.ratio else shape.rope
        inner = shape.heads * shape.head_dim
        self.linear_q_down_proj = Linear(shape.hidden, shape.q_lora_rank)
        self.q_layernorm = WideRMSNorm(shape.q_lora_rank, shape.eps)
        self.linear_q_up_proj = Linear(shape.q_lora_rank, inner)
        self.linear_kv_proj = Linear(shape.hidden, shape.head_dim)
        self.kv_layernorm = WideRMSNorm(shape.head_dim, shape.eps)
        self.core_attention = CoreAttention(shape, self.rope, owner)
        self.linear_o_group_proj = Linear(inner // shape.o_groups, shape.o_groups * shape.o_lora_rank)
        self.linear_proj = Linear(shape.o_groups * shape.o_lora_rank, shape.hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires: matrices normal with deviation 0.02."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
            else:
                module.reset_parameters()

    def forward(
        self,
        hidden: Tensor,
        cu_seqlens: Tensor,
        entries: Tensor | None = None,
        index_loss: bool = False,
        dense: bool = False,
    ) -> Attended:
        """hidden [T, 1, d], document bounds int32 [D+1].

        ``entries`` [E, D]: of the layer that owns the compressed keys, in place of this one's own. ``index_loss``: a
        CSA layer computes its indexer's too. ``dense``: it attends to all entries that a token may see, the stage in
        which the indexer warms up.

        Raises ValueError for more than one row, for other ``cu_seqlens`` as ``documents.check``, for entries of
        another shape, and for a layer without entries of its own or given ones.
        """
        if hidden.dim() != 3 or hidden.shape[1] != 1:
            raise ValueError(f"documents are packed into one row, [T, 1, d], not {list(hidden.shape)}")
        x, core = hidden[:, 0], self.core_attention
        positions = documents.positions(cu_seqlens, len(x))
        table = self.rope.shared(cu_seqlens, 1, positions, x)
        latent = self.q_layernorm(self.linear_q_down_proj(x))  # [T, Lq]
        entries = core.entries(x, cu_seqlens, entries)
        visible, projected = core.visible(x, latent, cu_seqlens, dense)
        by = None if dense else core.kernels
        if by is None:
            attended, mass = self._attended(x, latent, table, positions, entries, visible)
        else:
            wanted = index_loss and projected is not None
            attended, mass = self._attended_by(by, x, latent, table, positions, entries, visible, wanted)
        down, groups = self.linear_o_group_proj.weight, self.shape.o_groups
        output = self.linear_proj(grouped_output(attended, down, groups))[:, None]
        if visible is None:
            return Attended(output)
        given = projected, visible, mass
        loss = None if projected is None or not index_loss else (indexer if by is None else by).loss(*given)
        return Attended(output, entries, visible.chosen, loss)

    def _attended(
        self,
        x: Tensor,
        latent: Tensor,
        table: Table,
        positions: Tensor,
        entries: Tensor | None,
        visible: Visible | None,
    ) -> tuple[Tensor, Tensor | None]:
        """What ``core_attention`` gives, [T, H, D] turned back by the token's own angle."""
        shape, core = self.shape, self.core_attention
        query = rms_norm(self.linear_q_up_proj(latent).unflatten(-1, (shape.heads, -1)), eps=shape.eps)
        kv = rotate(self.kv_layernorm(self.linear_kv_proj(x)), table)
        given = rotate(query, table), kv, core.attn_sink, positions, shape.window, entries, visible
        mixed, mass = core_attention(*given)
        mixed = rotate(mixed, table, inverse=True)
        return mixed, mass

    def _attended_by(
        self,
        by: ModuleType,
        x: Tensor,
        latent: Tensor,
        table: Table,
        positions: Tensor,
        entries: Tensor | None,
        visible: Visible | None,
        wanted: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The same by kernels; the second result where it is ``wanted``."""
        shape, core = self.shape, self.core_attention
        query = self.linear_q_up_proj(latent).unflatten(-1, (shape.heads, -1))
        query = by.norm_rotate(query, None, shape.eps, table)
        kv = by.norm_rotate(self.linear_kv_proj(x), self.kv_layernorm.weight, shape.eps, table)
        given = query, kv, core.attn_sink, positions, shape.window, entries, visible
        found: tuple[Tensor, Tensor | None] = by.core_attention(*given, table, wanted)
        return found
