"""A function under test as data: where it is, the space of its inputs, and the same in eager torch. Needs no torch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Operand:
    """A tensor argument, by the name of upstream's parameter.

    ``dims``: its shape, names of sizes, numbers and products: "B T 2*H". ``kind``: how its values are drawn, as
    ``kit.values`` has it; "label V" draws from V classes. ``grad``: whether it may want a gradient. ``absent``: may be
    None.
    """

    name: str
    dims: str
    kind: str = "real"
    grad: bool = True
    absent: bool = False


@dataclass(frozen=True)
class Target:
    """One function. ``symbol``: ``module:attribute`` as users import it.

    ``sizes`` and ``options``: the values of each, the simplest first. ``reference``: the same in eager torch, called by
    the same keywords, None where there is none. ``call``: how it is called where keywords do not do:
    ``call(function, **operands, **options)``. ``rows``: the size along which rows do not depend on each other.
    ``fits``: which sizes and options go together.
    """

    name: str
    symbol: str
    operands: tuple[Operand, ...]
    sizes: dict[str, tuple[int, ...]]
    options: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    rows: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    fits: Callable[[dict[str, int], dict[str, Any]], bool] = lambda sizes, options: True


def shape(dims: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape that "B T 2*H" gives with these sizes."""
    found = []
    for word in dims.split():
        number = 1
        for factor in word.split("*"):
            number *= int(factor) if factor.isdigit() else sizes[factor]
        found.append(number)
    return tuple(found)


def kind(operand: Operand, sizes: dict[str, int]) -> str:
    """An operand's kind with numbers for the names of sizes: "label V" is "label 7"."""
    return re.sub(r"\b[A-Z]\w*", lambda name: str(sizes[name[0]]), operand.kind)


def taken(target: Target, function: Callable[..., Any]) -> set[str] | None:
    """The keywords that this release's function takes; None: any."""
    if target.call is not None:
        return None
    parameters = inspect.signature(function).parameters.values()
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}
