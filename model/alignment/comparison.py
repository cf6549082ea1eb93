"""Rows of the table: how far a module's values are from a reference's, and whether its choices are the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

FORMULAS = "formulas, fp64"  # as rows name them
OUTPUTS, GRADIENTS = 1e-5, 1e-4  # limits of relative differences in fp32
HEARD = 1e-2  # a parameter's gradient is compared as a part of this share of the largest one where it is smaller
CROSSED = 2e-6  # a value that near to a bound may be on either side of it by rounding
Kind = Literal["values", "choices", "gradients", "all gradients", "bits"]
Verdict = Literal["holds", "differs", "not compared"]
Pairs = Mapping[str, tuple[Tensor | None, Tensor | None]]


class Tie(BaseModel):
    """A token of the draw of ``seed`` for which rounding may choose either: what only one side chose is as good as what
    only the other did but for ``margin``, a part of the token's largest score; or a value is as near to a bound."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    seed: int
    token: int
    margin: float


class Row(BaseModel):
    """One module against ``against``. ``off``: the greatest relative difference, or how many tokens choose otherwise,
    over ``draws`` draws; ``where``: of which tensor, or at which token first."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    layer: str
    module: str
    kind: Kind
    against: str
    limit: float
    off: float = 0.0
    where: str = ""
    draws: int = 1
    ties: tuple[Tie, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if not self.draws:
            return "not compared"
        return "holds" if self.off <= self.limit else "differs"  # what is no number differs


def relative(ours: Tensor | None, theirs: Tensor | None, least: float = 0.0) -> float:
    """The largest difference as a part of their largest value, or of ``least`` where that is more; infinite where only
    one is there, or in another shape."""
    if ours is None and theirs is None:
        return 0.0
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return math.inf
    if not theirs.numel():
        return 0.0
    a, b = ours.detach().double(), theirs.detach().double()
    gap, scale = float((a - b).abs().max()), max(float(b.abs().max()), least)
    return gap / scale if scale else math.inf if gap else 0.0  # of no number none


class Judge:
    """Rows of one draw against one reference, in the order in which they are asked for. Behind a tie nothing is
    compared any more, unless the reference followed our choice: what comes then is of another choice."""

    def __init__(self, against: str, seed: int, rows: list[Row]) -> None:
        self.against, self.seed, self.rows = against, seed, rows
        self.tied = self.bent = False  # ``bent``: gradients alone are not compared

    def values(self, layer: str, module: str, pairs: Pairs, limit: float = OUTPUTS) -> None:
        """{tensor: (ours, theirs)}."""
        self._row(layer, module, "values", limit, {name: relative(*pair) for name, pair in pairs.items()})

    def gradients(self, layer: str, module: str, pairs: Pairs, least: float, kind: Kind = "gradients") -> None:
        """``least``: of what a difference is a part where a parameter's gradient is smaller."""
        found = {name: relative(*pair, least) for name, pair in pairs.items()}
        self.tied |= self.bent
        self._row(layer, module, kind, GRADIENTS, found)

    def near(self, distances: Sequence[float]) -> None:
        """Of each token, how near a value of the last row is to a bound, at which the gradient jumps."""
        token = min(range(len(distances)), key=lambda token: distances[token])
        if distances[token] <= CROSSED and not self.tied:
            tie = Tie(seed=self.seed, token=token, margin=distances[token])
            self.rows[-1] = self.rows[-1].model_copy(update={"ties": (tie,)})
            self.bent = True

    def bits(self, layer: str, module: str, pairs: Pairs) -> None:
        """How many tensors are not the same bit for bit."""
        other = [
            name
            for name, (ours, theirs) in pairs.items()
            if ours is None or theirs is None or ours.dtype != theirs.dtype or not torch.equal(ours, theirs)
        ]
        row = Row(layer=layer, module=module, kind="bits", against=self.against, limit=0)
        where = other[0] if other else f"{len(pairs)} tensors"
        self.rows.append(row.model_copy(update={"off": float(len(other)), "where": where}))

    def choices(
        self, layer: str, module: str, ours: Tensor, theirs: Tensor, scores: Tensor | None, followed: bool = False
    ) -> None:
        """Which of N things each token chose, [T, N] bool; ``scores`` [T, N]: by which, None where by none.
        ``followed``: where rounding may choose either, what the reference computed goes on with our choice."""
        different, ties = compared(ours, theirs, scores)
        row = Row(layer=layer, module=module, kind="choices", against=self.against, limit=0)
        if self.tied:
            self.rows.append(row.model_copy(update={"draws": 0}))
            return
        where = f"token {different[0]}" if different else ""
        found = tuple(Tie(seed=self.seed, token=token, margin=margin) for token, margin in ties)
        self.rows.append(row.model_copy(update={"off": float(len(different)), "where": where, "ties": found}))
        self.tied = bool(found) and not different and not followed

    def unless_tied(self, ours: Tensor, theirs: Tensor, scores: Tensor | None) -> None:
        """Compare nothing after this where the choices, which no row is of, differ by ties alone."""
        different, ties = compared(ours, theirs, scores)
        self.tied |= bool(ties) and not different

    def _row(self, layer: str, module: str, kind: Kind, limit: float, found: Mapping[str, float]) -> None:
        row = Row(layer=layer, module=module, kind=kind, against=self.against, limit=limit)
        if self.tied:
            self.rows.append(row.model_copy(update={"draws": 0}))
            return
        where = max(found, key=lambda name: math.inf if math.isnan(found[name]) else found[name])
        self.rows.append(row.model_copy(update={"off": found[where], "where": where if len(found) > 1 else ""}))


def compared(ours: Tensor, theirs: Tensor, scores: Tensor | None) -> tuple[list[int], list[tuple[int, float]]]:
    """The tokens that choose otherwise, and the ties among those that do, (token, margin)."""
    if ours.shape != theirs.shape:
        return [*range(len(theirs))], []
    different, ties = [], []
    for token in (ours != theirs).any(1).nonzero().flatten().tolist():
        margin = math.inf if scores is None else _margin(ours[token], theirs[token], scores[token].detach().double())
        if margin <= OUTPUTS:
            ties.append((token, margin))
        else:
            different.append(token)
    return different, ties


def _margin(ours: Tensor, theirs: Tensor, scores: Tensor) -> float:
    """The difference between what only one side chose, as a part of the largest score; infinite for other counts."""
    mine, other = scores[ours & ~theirs], scores[theirs & ~ours]
    if len(mine) != len(other):
        return math.inf
    largest = float(scores[scores.isfinite()].abs().max())
    return abs(float(other.max() - mine.min())) / largest if largest else 0.0


def chosen_of(rows: list[list[int]], count: int) -> Tensor:
    """[T, count] bool of each token's numbers."""
    found = torch.zeros(len(rows), count, dtype=torch.bool)
    for token, chosen in enumerate(rows):
        found[token, chosen] = True
    return found


def merged(draws: Sequence[Iterable[Row]]) -> list[Row]:
    """One row a module: the worst of all draws, and every tie."""
    found: dict[tuple[str, ...], Row] = {}
    for rows in draws:
        for row in rows:
            key = row.layer, row.module, row.kind, row.against
            found[key] = _worse(found[key], row) if key in found else row
    return list(found.values())


def _worse(one: Row, other: Row) -> Row:
    kept = {"draws": one.draws + other.draws, "ties": one.ties + other.ties}
    return max(one, other, key=_size).model_copy(update=kept)


def _size(row: Row) -> float:
    """By which rows are ordered: what is no number is the worst, what was not compared the least."""
    return -1.0 if not row.draws else math.inf if math.isnan(row.off) else row.off
