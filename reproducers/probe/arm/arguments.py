"""Arguments of the probe's calls, checked when they are given: a wrong one is the reproducer's fault, not the tree's.

Only an arm of the runner checks them; what a maintainer gets was run by an arm. Standard library only at import.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from reproducers.probe.api import Probe
from reproducers.probe.checks import CannotTest, Signature

REMEDY = "correct that call: docs/writing-a-pack.md, 2, lists the probe's calls"
UNCHECKED = ("open", "close", "check_origin", "importing")
MEASURED = ("measured", "tensors")  # values of the tree under test: what is wrong with them may be the tree's fault
ON_GPU = ("launches", "milliseconds", "graph")
Cls = TypeVar("Cls", bound=type[Probe])


class Misuse(CannotTest):
    """A call that the probe cannot take. ``measured``: what is wrong is a value that the tree under test may have
    given; it is the reproducer's fault where the pristine tree gives it."""

    def __init__(self, reason: str, remedy: str = REMEDY, measured: bool = False) -> None:
        super().__init__(reason, remedy)
        self.measured = measured


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else f"{_shown(value)} is not a text"


def _perhaps(value: Any) -> str:
    return "" if isinstance(value, str) else f"{_shown(value)} is not a text"


def _number(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "" if number and not math.isnan(value) else f"{_shown(value)} is not a number"


def _limit(value: Any) -> str:
    if said := _number(value):
        return said
    return "" if 0 <= value < math.inf else f"{value} is no limit: an error norm is finite and not under 0"


def _measured(value: Any) -> str:
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch refuses a tensor of several elements
        return f"{_shown(value)} is not a number ({error})"
    return "" if not isinstance(value, str | bytes) else f"{_shown(value)} is a text, not a number"


def _noted(value: Any) -> str:
    return "" if isinstance(value, str | int | float) else f"{_shown(value)} is neither a number nor a text"


def _whole(least: int) -> Callable[[Any], str]:
    def fault(value: Any) -> str:
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return "" if whole else f"{_shown(value)} is not a whole number from {least} on"

    return fault


def _taking(*given: Any, **named: Any) -> Callable[[Any], str]:
    """The rule of a function that is called with these arguments."""

    def fault(value: Any) -> str:
        if not callable(value):
            return f"{_shown(value)} cannot be called"
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):  # of C code that tells none
            return ""
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            return f"{_shown(value)} does not take what it is called with: {error}"
        return ""

    return fault


def _signature(value: Any) -> str:
    if not isinstance(value, Signature):
        return f"{_shown(value)} is not probe.Signature(exception, message, frame)"
    for field, part in zip(Signature._fields, value, strict=True):
        if said := (_perhaps if field == "message" else _text)(part):
            return f"{field}: {said}" + (f": write {part.__name__!r}" if isinstance(part, type) else "")
    if not value.exception.isidentifier():
        return f"exception: {value.exception!r} is not the name of a class without its module"
    try:
        re.compile(value.message)
    except re.error as error:
        return f"message: {value.message!r} is no pattern: {error}"
    return "" if not value.frame.startswith("/") else f"frame: {value.frame!r} is not the end of a path in the tree"


def _space(value: Any) -> str:
    from hypothesis.strategies import SearchStrategy

    if not isinstance(value, dict) or not value:
        return f"{_shown(value)} is not {{argument: strategy}}"
    odd = [name for name, drawn in value.items() if not (isinstance(name, str) and isinstance(drawn, SearchStrategy))]
    return f"{odd[0]!r} has no strategy of hypothesis, but {_shown(value[odd[0]])}" if odd else ""


def _bits(values: tuple[Any, ...]) -> str:
    if not values:
        return "nothing is given to compare"
    odd = [value for value in values if not (value is None or isinstance(value, bytes) or hasattr(value, "dtype"))]
    return f"{_shown(odd[0])} is neither a tensor nor bytes" if odd else ""


RULES: dict[str, Callable[[Any], str]] = {  # {argument, or call.argument: what is wrong with a value, "" for nothing}
    "name": _text,
    "reason": _text,
    "reference": _text,
    "source": _text,
    "unit": _perhaps,
    "detail": _perhaps,
    "measured": _measured,
    "limit": _limit,
    "bug_above": _number,
    "note.measured": _noted,
    "tensors": _bits,
    "count": _whole(1),
    "world": _whole(1),
    "repeats": _whole(1),
    "warm": _whole(0),
    "signature": _signature,
    "call": _taking(),
    "work": _taking(0),
    "space": _space,
    "package": lambda value: "" if value is None else _text(value),
}


def refuse(said: str, measured: bool = False) -> NoReturn:
    """Raise Misuse with the reproducer's line that is being run."""
    raise Misuse(f"{place()}: {said}", measured=measured)


def place() -> str:
    """``reproducer.py:LINE`` of the call that is being made."""
    file = sys.modules["__main__"].__file__ or ""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return f"{Path(file).name}:{frame.f_lineno}"


def checked(cls: Cls) -> Cls:
    """The class with the arguments of each public call of the probe checked first."""
    for name, _ in inspect.getmembers(Probe, inspect.isfunction):
        if not name.startswith("_") and name not in UNCHECKED:
            setattr(cls, name, _checked(name, getattr(cls, name)))
    return cls


def _checked(call: str, method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checking(self: Any, *args: Any, **named: Any) -> Any:
        try:
            _check(self, call, signature, args, named)
            return method(self, *args, **named)
        except Misuse as error:  # also of a rank
            self.misused = self.misused or error
            raise
        except TypeError as error:
            if "parallel" in signature.parameters and "unexpected keyword argument" in str(error):
                self.misused = Misuse(f"{place()}: p.{call}: {error}")
                raise self.misused from error
            raise

    return checking


def _check(probe: Any, call: str, signature: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        bound = signature.bind(probe, *args, **named)
    except TypeError as error:
        refuse(f"p.{call}: {error}")
    bound.apply_defaults()
    given = bound.arguments
    for argument, value in given.items():
        rule = RULES.get(f"{call}.{argument}") or RULES.get(argument)
        if rule and (said := rule(value)):
            refuse(f"p.{call}: {argument}: {said}", argument in MEASURED)
    if "measure" in given and (said := _taking(**given["space"])(given["measure"])):
        refuse(f"p.{call}: measure: {said}")
    if "bug_above" in given and given["bug_above"] < given["limit"]:
        refuse(f"p.{call}: bug_above: {given['bug_above']:g} is under the limit {given['limit']:g}")
    if call in ON_GPU and probe.lane == "cpu":
        refuse(f"p.{call}: it is for the cuda lane: ask p.lane first")


def _shown(value: Any) -> str:
    """A value and its type as a person knows it again, on one line."""
    text = " ".join(repr(value).split())
    return f"{text[:77]}..." if len(text) > 80 else text
