"""Manifold-constrained hyper-connections: the residual as n streams, which each sublayer reads, writes and mixes.

The paper is arXiv 2512.24880. Order and epsilons of the normalisations are those of DeepSeek's ``hc_split_sinkhorn``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.exported.step import Linear
from model.layers.common import fp32


class Coefficients(NamedTuple):
    """What a sublayer does with n streams, at least fp32: ``pre`` [..., n] weighs them into its input,
    ``post`` [..., n] its output into each of them, and entry i, j of ``comb`` [..., n, n] stream i into stream j."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def mixes(streams: Tensor, fn: Tensor, eps: float) -> Tensor:
    """fn [rows, n d] times the streams [..., n, d] as one vector of root mean square 1: [..., rows], at least fp32."""
    z = fp32.wide(streams.flatten(-2))
    return z @ fn.to(z.dtype).T * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Matrices near the doubly stochastic ones, [..., n, n] from logits of that shape.

    A softmax over each row, then columns, then rows and columns in turn, ``iterations`` normalisations of columns in
    all. It ends with columns: they sum to 1, rows only about, the less so the larger the logits.
    """
    c = logits.softmax(-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """The sum of streams [..., n, d] by weights [..., n]: [..., d] in the streams' dtype, rounded once."""
    return (pre.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)


def expand(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The streams after a sublayer with this output [..., d]: [..., n, d] in their dtype, rounded once.

    Stream j is post[j] output + the sum over i of comb[i, j] stream i: the matrix is transposed.
    """
    mixed = comb.transpose(-1, -2) @ streams.to(comb.dtype)
    return (post.unsqueeze(-1) * output.unsqueeze(-2) + mixed).to(streams.dtype)


def _mapping(inputs: int, rows: int) -> nn.Linear:
    """The projection of all streams to coefficients, fp32."""
    made = Linear(inputs, rows, dtype=torch.float32)
    fp32.keep(made.weight)
    return made


class HyperConnection(nn.Module):  # type: ignore[misc]
    """The coefficients of one sublayer, from the streams. All parameters stay fp32 (``fp32.keep``).

    ``mapping_proj`` [n² + 2n, n d], ``bias`` [n² + 2n]: n rows for pre, n for post, n² for comb, row by row. ``scale``
    [3]: of each of the three. Initial values, of which DeepSeek says nothing, are those of transformers 5.24.0.
    ``kernels``: ``hybrid.kernels.hyper`` where they compute ``around``.
    """

    def __init__(
        self, hidden: int, streams: int, iterations: int = 20, eps: float = 1e-6, norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.streams, self.iterations, self.eps, self.norm_eps = streams, iterations, eps, norm_eps
        self.kernels: ModuleType | None = None
        rows = streams * (streams + 2)
        self.mapping_proj = _mapping(streams * hidden, rows)
        self.bias = fp32.keep(nn.Parameter(torch.empty(rows, dtype=torch.float32)))
        self.scale = fp32.keep(nn.Parameter(torch.empty(3, dtype=torch.float32)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        nn.init.normal_(self.mapping_proj.weight, std=0.02)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.scale)

    def coefficients(self, streams: Tensor) -> Coefficients:
        """Of streams [..., n, d]. ``pre`` and comb's entries are above ``eps``, ``post`` is between 0 and 2."""
        n = self.streams
        found = mixes(streams, self.mapping_proj.weight, self.norm_eps)
        parts = found.split([n, n, n * n], dim=-1)
        scales, bases = self.scale.to(found.dtype).unbind(), self.bias.to(found.dtype).split([n, n, n * n])
        pre, post, comb = (x * scale + base for x, scale, base in zip(parts, scales, bases, strict=True))
        matrix = sinkhorn(comb.unflatten(-1, (n, n)), self.iterations, self.eps)
        return Coefficients(pre.sigmoid() + self.eps, 2 * post.sigmoid(), matrix)

    def forward(self, streams: Tensor, pre: Tensor | None = None) -> tuple[Tensor, Coefficients]:
        """Streams [..., n, d] -> the sublayer's input [..., d] and the coefficients, for ``expand``.

        ``pre`` [..., n] weighs the streams in place of this sublayer's own: in DeepSeek-V4.1 the one before gives it.
        """
        found = self.coefficients(streams)
        return collapse(streams, found.pre if pre is None else pre), found

    def around(self, streams: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The streams [..., n, d] behind ``sublayer``, [..., d] -> [..., d]."""
        if self.kernels is None:
            x, found = self(streams)
            return expand(sublayer(x), streams, found.post, found.comb)
        constants = self.kernels.Constants(self.iterations, self.eps, self.norm_eps)
        read = self.kernels.read(streams, self.mapping_proj.weight, self.bias, self.scale, constants)
        left: Tensor = self.kernels.expand(sublayer(read.input), read.streams, read.post, read.comb)
        return left


class HyperHead(nn.Module):  # type: ignore[misc]
    """The streams' weighted sum before the final norm; parameters stay fp32, as ``HyperConnection``'s.

    ``mapping_proj`` [n, n d], ``bias`` [n], ``scale`` [1].
    """

    def __init__(self, hidden: int, streams: int, eps: float = 1e-6, norm_eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.norm_eps = eps, norm_eps
        self.kernels: ModuleType | None = None
        self.mapping_proj = _mapping(streams * hidden, streams)
        self.bias = fp32.keep(nn.Parameter(torch.empty(streams, dtype=torch.float32)))
        self.scale = fp32.keep(nn.Parameter(torch.empty(1, dtype=torch.float32)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        nn.init.normal_(self.mapping_proj.weight, std=0.02)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.scale)

    def forward(self, streams: Tensor) -> Tensor:
        """Streams [..., n, d] -> [..., d]."""
        if self.kernels is not None:
            constants = self.kernels.Constants(0, self.eps, self.norm_eps)
            out: Tensor = self.kernels.collapse(streams, self.mapping_proj.weight, self.bias, self.scale, constants)
            return out
        found = mixes(streams, self.mapping_proj.weight, self.norm_eps)
        pre = (found * self.scale.to(found.dtype) + self.bias.to(found.dtype)).sigmoid() + self.eps
        return collapse(streams, pre)


def spread(hidden: Tensor, streams: int) -> Tensor:
    """n equal streams [..., n, d] of hidden [..., d]: what the first layer gets."""
    return hidden.unsqueeze(-2).expand(*hidden.shape[:-1], streams, hidden.shape[-1])
