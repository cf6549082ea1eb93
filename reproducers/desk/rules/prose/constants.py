"""The numbers that a pack's text may state: those in its receipts, and those in its own files."""

from __future__ import annotations

import ast
import functools
import json
import math
import operator
import re
from collections.abc import Callable, Iterator

from reproducers.desk.rules.case import Case
from reproducers.evidence.receipts import read
from reproducers.record.schema import parsed

FOLDED: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}

OTHER = re.compile(r"https?://\S+|\b(?=\w*[a-f])[0-9a-f]{7,}\b")  # addresses and digests
NUMBER = re.compile(r"(?<![.\d])\d+(?:[,_]\d+)*(?:\.\d+)?(?:e[+-]?\d+)?")


def measured(case: Case) -> list[tuple[float, str]]:
    """(value, unit) of every number in the newest receipts: measurements and limits of all arms."""
    values: list[tuple[float, str]] = []
    for path in case.newest.values():
        receipt = read(path)
        for check in (check for results in receipt.arms.values() for result in results for check in result.checks):
            stated = [check.measured, check.limit, check.bug_above, *numbers(check.detail)]
            values += [(float(v), check.unit) for v in stated if isinstance(v, int | float)]
            values += [(v, "") for v in numbers(str(check.measured))]
    return values


def written(case: Case) -> set[float]:
    """Numbers in the reproducer, pack.yaml and the lines that the patches add or remove; products of literals too."""
    pack = case.pack.model_dump(mode="json", exclude={"title", "claim", "effect"})  # these are judged
    source = case.pack.reproducer.read_text(encoding="utf-8")
    values = {*numbers(json.dumps(pack)), *numbers(source)}
    values |= _literals(source)
    for patch in case.patches.values():
        changed = [line[1:] for line in patch.read_text(encoding="utf-8").splitlines() if line[:1] in "+-"]
        values.update(numbers("\n".join(changed)))
    return values


@functools.lru_cache(maxsize=64)
def _literals(source: str) -> frozenset[float]:
    """The literals of a Python source, and what arithmetic on them gives."""
    nodes = (node for node in ast.walk(parsed(source)) if isinstance(node, ast.BinOp | ast.Constant))
    return frozenset(value for node in nodes if (value := _folded(node)) is not None)


def numbers(text: str) -> Iterator[float]:
    """Every number in a text that is no part of a digest or an address; 16,256 may be one or two."""
    for found in NUMBER.findall(OTHER.sub(" ", text)):
        plain = found.replace("_", "")
        for part in {plain.replace(",", ""), *plain.split(",")} if "," in plain else (plain,):
            if math.isfinite(value := float(part)):
                yield value


@functools.lru_cache(maxsize=64)
def ordered(log: str) -> list[float]:
    """The numbers of a log, least first; the list is shared by all who ask."""
    return sorted(set(numbers(log)))


def _folded(node: ast.AST) -> float | None:
    """The value of a literal, or of arithmetic on literals."""
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, int | float) and abs(node.value) < 1e300 else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _folded(node.left), _folded(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.LShift | ast.Pow):
        small = 0 <= right <= 64 and abs(left) <= 1024
        return (left * 2**right if isinstance(node.op, ast.LShift) else left**right) if small else None
    done = FOLDED.get(type(node.op))
    try:
        return done(left, right) if done else None
    except ZeroDivisionError:
        return None
