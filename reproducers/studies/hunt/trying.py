"""One case under all relations: what fails, and whether it holds under other seeds and in fp64."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reproducers.studies.hunt import kit, limits, relations
from reproducers.studies.hunt.targets.target import Target, kind, shape

OTHER_SEEDS = 4
MOVES = 3
REFUSALS = (RuntimeError, ValueError, NotImplementedError, AssertionError)
SAME_IN_FP64 = 1e-3  # a difference that is rounding is 1e-8 of what it was


@dataclass(frozen=True)
class Case:
    """One point of a target's space, as it is kept in the corpus. ``weights``: spread and layout of what comes from
    above."""

    sizes: dict[str, int]
    options: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    spread: str = "normal"
    weights: tuple[str, str] = ("signed", "plain")
    dtype: str = "float32"
    seed: int = 0


@dataclass(frozen=True)
class Failure:
    """A relation that does not hold: for which quantity, by how much, and how much is healthy; an error's text."""

    relation: str
    what: str
    error: float
    limit: float
    raised: str = ""


class Refused(Exception):
    """The function does not take the case, or this host cannot run it."""


def made(target: Target, case: Case) -> list[kit.Made]:
    """The case's operands as tensors to make."""
    return [
        kit.Made(o.name, shape(o.dims, case.sizes), kind(o, case.sizes), case.layouts.get(o.name, "plain"))
        for o in target.operands
        if o.name not in case.absent
    ]


def bench(target: Target, function: Callable[..., Any], case: Case, dtype: str = "") -> kit.Bench:
    """The case as a bench. ``dtype``: another than the case's."""
    call = function if target.call is None else partial(target.call, function)
    return kit.Bench(
        call,
        target.reference,
        made(target, case),
        case.options,
        [name for name in case.needs if name not in case.absent],
        case.spread,
        case.weights,
        case.seed,
        getattr(torch, dtype or case.dtype),
    )


def row_dims(target: Target) -> dict[str, int]:
    """{operand: its dimension of rows}."""
    return {o.name: o.dims.split().index(target.rows) for o in target.operands if target.rows in o.dims.split()}


def holding(target: Target) -> dict[str, Callable[[kit.Bench], Iterator[kit.Pair]]]:
    """The relations that are asked of a target, by name."""
    found = dict(relations.RELATIONS)
    if target.rows:
        found["rows"] = partial(relations.rows, dims=row_dims(target))
    return found


def failures(
    target: Target, function: Callable[..., Any], case: Case, asked: Iterable[str], tree: str
) -> Iterator[Failure]:
    """What fails, relation by relation. Raises Refused where the function does not take the case."""
    one = bench(target, function, case)
    try:
        one.passes()
    except Exception as error:
        if (said := crash(error, tree)) is None:
            raise Refused(str(error)) from error
        if not _answered(one):
            raise Refused(str(error)) from error
        yield Failure("runs", said, kit.ENDLESS, 0.0, said)
        return
    noises = limits.noise(one)
    every = holding(target)
    for name in asked:
        if name not in every:
            continue
        try:
            for what, got, want in every[name](one):
                if bool(want.isfinite().all()):
                    allowed = 0.0 if name in relations.EXACT else limits.limit(what, want, noises, one.dtype)
                    if (off := kit.error(got, want)) > allowed:
                        yield Failure(name, what, off, allowed)
        except Exception as raised:
            if (said := crash(raised, tree)) is not None:
                yield Failure(name, said, kit.ENDLESS, 0.0, said)


def _answered(one: kit.Bench) -> bool:
    """Whether the formula has an answer: a case without one, as of a mean over nothing, is none."""
    try:
        return one.reference is None or all(bool(x.isfinite().all()) for x in one.eager(torch.float64).values())
    except Exception:
        return False


def crash(error: BaseException, tree: str) -> str | None:
    """The error of a crash, without its numbers, and its place in upstream's code.

    None for a refusal: an error that upstream raises itself, one of a kind by which torch says no (to a view of such
    strides, to a saved tensor that was changed), or one inside Triton's interpreter or this engine.
    """
    if isinstance(error, REFUSALS):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if frame.filename.startswith(tree)]
    if not inner or any("/triton/" in frame.filename for frame in frames):
        return None
    last = inner[-1]
    if frames[-1] is last and (last.line or "").startswith("raise"):
        return None
    place = f"{Path(last.filename).name}:{last.name}"
    said = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__} in {place}: {re.sub(r'[0-9]+', '#', said)}"[:200]


def confirmed(target: Target, function: Callable[..., Any], case: Case, found: Failure, tree: str) -> tuple[bool, str]:
    """Whether a failure is told, and why not.

    It must come again, come with another seed, and stay in fp64 and when the inputs move by an ulp: rounding, however
    large a function's own is, is another one then.
    """

    def again(other: Case) -> bool:
        try:
            rows = failures(target, function, other, [found.relation], tree)
            return any(row.what == found.what for row in rows)
        except Refused:
            return False

    if not again(case):
        return False, "does not come again"
    if not any(again(dataclasses.replace(case, seed=case.seed + 101 * step)) for step in range(1, OTHER_SEEDS + 1)):
        return False, "comes with no other seed"
    if found.raised or found.relation in relations.EXACT or found.error == kit.ENDLESS:
        return True, ""

    def off(dtype: str, draw: int = 0) -> torch.Tensor:
        """got - want of the quantity, of the pair where that is largest."""
        moved = bench(target, function, case, dtype)
        moved.draw = draw
        pairs = holding(target)[found.relation](moved)
        diffs = [got.double() - want.double() for what, got, want in pairs if what == found.what]
        return max(diffs, key=lambda diff: diff.abs().max().item())

    base = off(case.dtype)
    for draw in range(1, MOVES + 1):
        if (off(case.dtype, draw) - base).abs().max() > 0.5 * base.abs().max():
            return False, "rounding: it is another when inputs move by an ulp"
    try:
        wide = off("float64").abs().max().item()
    except Exception:
        return True, ""  # the function takes no fp64
    return (True, "") if wide > SAME_IN_FP64 * found.error else (False, "rounding: it vanishes in fp64")
