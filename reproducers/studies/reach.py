"""Statements of the functions that a patch changes which no check of its pack runs: a fix wrong there passes."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from patchlane.base.errors import CannotTestHere
from reproducers.probe.watch import Ranges
from reproducers.record.receipt import Executed
from reproducers.record.schema import Pack
from reproducers.trial import statements
from reproducers.trial.experiment import Request, Say, execute
from reproducers.upstream.store import Store, Tree

Span = tuple[int, int]  # first and last line


@dataclass(frozen=True)
class Function:
    """A function of a patched file, with its statements."""

    path: str
    name: str
    statements: frozenset[Span]

    def unrun(self, executed: Executed | None) -> list[Span]:
        """Statements of which no line ran, and that no compiler of kernels took."""
        if executed is None:
            return sorted(self.statements)
        lines, taken = set(executed.lines), [(source.first, source.last) for source in executed.compiled]
        return [
            (first, last)
            for first, last in sorted(self.statements)
            if lines.isdisjoint(range(first, last + 1)) and not any(a <= first and last <= b for a, b in taken)
        ]


@dataclass
class Reach:
    """What the checks of a pack run of the functions that its patch changes."""

    unrun: dict[Function, list[Span]] = field(default_factory=dict)

    @property
    def all(self) -> int:
        return sum(len(function.statements) for function in self.unrun)

    @property
    def ran(self) -> int:
        return self.all - sum(map(len, self.unrun.values()))


def measure(pack: Pack, request: Request, store: Store, say: Say) -> Reach:
    """Run the patched arm. Raises CannotTestHere where it cannot run to its end."""
    if pack.patch_at(request.at) is None:
        raise CannotTestHere(f"{pack.id} has no patch for {request.at}", "python -m reproducers.run --list")
    functions = list[Function]()

    def watch(tree: Tree, ranges: Ranges) -> Ranges:
        functions[:] = [one for path, spans in ranges.items() for one in touched(tree.path, path, spans)]
        wider = {path: [*spans] for path, spans in ranges.items()}
        for one in functions:
            wider[one.path] += [[first, last] for first, last in sorted(one.statements)]
        return wider

    run = execute(pack, dataclasses.replace(request, arm="patched", watch=watch), store, say)
    if not run.patched or run.patched[-1].outcome not in ("bug", "healthy"):
        raise CannotTestHere(f"{pack.id} did not run to its end: {run.ruling.reason}", run.ruling.remedy)
    executed = run.patched[-1].executed
    return Reach({one: one.unrun(executed.get(one.path)) for one in functions})


def touched(root: Path, path: str, spans: Iterable[Iterable[int]]) -> Iterator[Function]:
    """The outermost functions and methods of a Python file in which one of the lines lies."""
    code = statements.could_run(root / path)
    if not code:
        return
    wanted = [range(first, last + 1) for first, last in spans]
    for name, node in _functions(ast.parse((root / path).read_bytes()), ""):
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        whole = range(first, (node.end_lineno or node.lineno) + 1)
        if any(max(whole.start, lines.start) < min(whole.stop, lines.stop) for lines in wanted):
            body = range(node.body[0].lineno, whole.stop)
            yield Function(path, name, frozenset(code[line] for line in code if line in body))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """(qualified name, node) of functions that lie in none; also those under a condition or in a class."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{inner.name}", inner
        else:
            yield from _functions(inner, f"{prefix}{inner.name}." if isinstance(inner, ast.ClassDef) else prefix)


def lines(reach: Reach) -> Iterator[str]:
    """One line for each function of which a statement did not run."""
    for function, spans in reach.unrun.items():
        if spans:
            yield f"{function.path} {function.name}: no check runs lines {', '.join(_joined(function, spans))}"


def _joined(function: Function, spans: list[Span]) -> Iterator[str]:
    """Spans as text; those between which no other statement lies are one."""
    order = {span: place for place, span in enumerate(sorted(function.statements))}
    start = spans[0][0]
    for one, after in pairwise([*spans, None]):
        if one and (after is None or order[after] != order[one] + 1):
            yield f"{start}-{one[1]}" if one[1] > start else str(start)
            start = after[0] if after else 0
