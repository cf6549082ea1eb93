"""One case as tensors, and its forwards and backwards. A pack that the hunt writes holds this module's text.

Everything is made anew for each pass, for functions under test may write into what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

Tensors = dict[str, "torch.Tensor | None"]
ENDLESS = 1e300  # an error that no number tells
Pair = tuple[str, torch.Tensor, torch.Tensor]  # (what it is, got, want)


class Made(NamedTuple):
    """One tensor argument: its name, shape, kind of values and layout."""

    name: str
    shape: tuple[int, ...]
    kind: str
    layout: str


def values(made: Made, spread: str, seed: int) -> torch.Tensor:
    """The operand's values, fp64 or int64, contiguous, reproducible by ``seed``."""
    kind, _, bound = made.kind.partition(" ")
    name = "angle" if kind in ("cos", "sin") else made.name
    source = torch.Generator().manual_seed(seed * 1009 + sum(map(ord, name)))
    if kind == "label":
        drawn = torch.randint(0, int(bound), made.shape, generator=source)
        ignored = torch.rand(made.shape, generator=source) < {"normal": 0.0, "ties": 0.6}.get(spread, 0.3)
        return torch.where(ignored, -100, drawn)
    if kind == "class":  # a label that always counts
        return torch.randint(0, int(bound), made.shape, generator=source)
    if kind in ("cos", "sin"):  # of the same angles, each half of the last dimension the same
        angle = torch.randn((*made.shape[:-1], made.shape[-1] // 2), generator=source, dtype=torch.float64)
        return getattr(torch, kind)(torch.cat([angle, angle], -1))
    x = torch.randn(made.shape, generator=source, dtype=torch.float64)
    if kind == "scale":  # a learned factor, near 1
        return 1 + 0.3 * x
    x = {"large": x * 8, "small": x * 0.01, "ties": (x * 2).round() / 2, "normal": x}[spread]
    if kind == "logp":
        return x.log_softmax(-1)
    if kind == "prob":
        return x.softmax(-1)
    return x.abs() + 0.05 if kind == "positive" else x


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values in a layout; memory between and after them is NaN, or the largest number of an integer type."""
    if x.ndim == 0 or layout == "plain" or x.numel() == 0:
        return x.clone()
    hole = torch.full_like(x, torch.nan if x.is_floating_point() else torch.iinfo(x.dtype).max)
    if layout == "expanded":
        return x[:1].clone().expand(x.shape)
    if layout == "guarded":  # one element off alignment, holes before and after
        return torch.cat([hole.flatten()[:1], x.flatten(), hole.flatten()])[1 : 1 + x.numel()].view(x.shape)
    if layout == "swapped" and x.ndim > 1:
        a, b = (1, 2) if x.ndim > 2 else (0, 1)
        return x.transpose(a, b).contiguous().transpose(a, b)
    dim = -1 if layout == "inner" else 0
    return torch.stack([x, hole], dim if dim < 0 else dim + 1).select(dim if dim < 0 else dim + 1, 0)


def fresh(x: torch.Tensor) -> torch.Tensor:
    """A leaf with the same values, strides and memory around them."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage().clone())  # type: ignore[call-overload]
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def moved(x: torch.Tensor, draw: int) -> torch.Tensor:
    """Each element moved by an ulp of its dtype, up or down by chance; draw 0 moves none."""
    if not draw or not x.is_floating_point():
        return x
    up = torch.rand(x.shape, generator=torch.Generator().manual_seed(draw)) < 0.5
    return torch.nextafter(x, torch.where(up, torch.inf, -torch.inf).to(x.dtype))


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """max|got - want|; ENDLESS where the shapes differ or ``got`` is not finite."""
    if got.shape != want.shape:
        return ENDLESS
    if not want.numel():
        return 0.0
    worst = float((got.detach().double() - want.detach().double()).abs().max())
    return worst if worst < ENDLESS else ENDLESS  # NaN too


class Bench:
    """One case. ``function`` takes the operands and options by keyword and gives a tensor or several.

    ``needs``: the operands that want a gradient. ``weights``: (spread, layout) of the gradients that come from above.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        reference: Callable[..., Any] | None,
        made: list[Made],
        options: dict[str, Any],
        needs: list[str],
        spread: str,
        weights: tuple[str, str],
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.function, self.reference, self.made, self.options = function, reference, made, options
        self.needs, self.spread, self.weights, self.seed, self.dtype = needs, spread, weights, seed, dtype
        self.draw = 0
        self._known: dict[str, torch.Tensor] | None = None

    def given(self, draw: int | None = None) -> Tensors:
        """The operands, none of which wants a gradient; ``draw``: as ``moved`` has it, by default the bench's."""
        found = {}
        for one in self.made:
            x = values(one, self.spread, self.seed)
            x = moved(x.to(self.dtype), self.draw if draw is None else draw) if x.is_floating_point() else x
            found[one.name] = laid(x, one.layout)
        return found

    def leaves(self, given: Tensors | None = None, needs: list[str] | None = None) -> Tensors:
        """New leaves of a graph, by default of the operands, those of ``needs`` wanting a gradient."""
        wanted = self.needs if needs is None else needs
        given = self.given() if given is None else given
        return {n: None if x is None else fresh(x).requires_grad_(n in wanted) for n, x in given.items()}

    def forward(self, operands: Tensors, function: Callable[..., Any] | None = None) -> list[torch.Tensor]:
        """The floating outputs; the function under test by default."""
        out = (function or self.function)(**operands, **self.options)
        out = out if isinstance(out, tuple | list) else [out]
        return [y for y in out if isinstance(y, torch.Tensor) and y.is_floating_point()]

    def above(self, outs: list[torch.Tensor], salt: int = 0) -> list[torch.Tensor]:
        """The gradients from above, one for each output."""
        spread, layout = self.weights
        found = []
        for number, y in enumerate(outs):
            source = torch.Generator().manual_seed(7919 * (self.seed + 1) + number + 31 * salt)
            go = torch.rand(y.shape, generator=source, dtype=torch.float64) + 0.5
            if spread == "masked":  # as by a loss mask
                go = torch.where(torch.rand(y.shape, generator=source) < 0.4, 0.0, go)
            elif spread == "signed":
                go = go - 1
            go = go.to(y.dtype)
            go = go.flatten()[:1].reshape(()).expand(y.shape) if layout == "expanded" else laid(go, layout)
            found.append(fresh(go))
        return found

    def backward(
        self, outs: list[torch.Tensor], leaves: Tensors, above: list[torch.Tensor] | None = None, retain: bool = False
    ) -> dict[str, torch.Tensor]:
        """{operand: gradient} of the leaves that want one, zeros where autograd gives none; copies."""
        wanted = {n: x for n, x in leaves.items() if x is not None and x.requires_grad}
        above = self.above(outs) if above is None else above
        pairs = [(y, go) for y, go in zip(outs, above, strict=True) if y.requires_grad]
        if not pairs or not wanted:
            return {n: torch.zeros_like(x) for n, x in wanted.items()}
        ys, gos = zip(*pairs, strict=True)
        got = torch.autograd.grad(ys, [*wanted.values()], gos, retain_graph=retain, allow_unused=True)
        return {
            n: torch.zeros_like(x) if g is None else g.detach().clone()
            for (n, x), g in zip(wanted.items(), got, strict=True)
        }

    def passes(self, needs: list[str] | None = None, given: Tensors | None = None) -> dict[str, torch.Tensor]:
        """{"output 0": ..., "gradient of x": ...} of the function under test; the plain pass is made once."""
        if needs is None and given is None:
            self._known = self._known or self.again()
            return self._known
        return self.again(needs, given)

    def again(self, needs: list[str] | None = None, given: Tensors | None = None) -> dict[str, torch.Tensor]:
        """As ``passes``, made anew."""
        leaves = self.leaves(given, needs)
        outs = self.forward(leaves)
        kept = [y.detach().clone() for y in outs]
        return named(kept, self.backward(outs, leaves))

    def eager(self, dtype: torch.dtype, draw: int | None = None) -> dict[str, torch.Tensor]:
        """The same of the reference, computed in ``dtype``, in which it rounds the operands' values no more."""
        assert self.reference is not None
        wide = {n: x.to(dtype) if x is not None and x.is_floating_point() else x for n, x in self.given(draw).items()}
        leaves = self.leaves(wide)
        outs = self.forward(leaves, self.reference)
        above = [go.to(y.dtype) for go, y in zip(self.above([y.to(self.dtype) for y in outs]), outs, strict=True)]
        return named([y.detach() for y in outs], self.backward(outs, leaves, above))


def named(outs: list[torch.Tensor], gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs and gradients by what they are."""
    found = {f"output {number}": y for number, y in enumerate(outs)}
    return found | {f"gradient of {name}": g for name, g in gradients.items()}


def paired(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> Iterator[Pair]:
    """The pairs of what both have."""
    return ((name, got[name], want[name]) for name in want if name in got)
