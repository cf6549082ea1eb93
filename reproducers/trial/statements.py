"""The statements that a patch adds and that could run. An arm must be seen to run each of them."""

from __future__ import annotations

import ast
import dataclasses
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reproducers.probe.codehash import nested
from reproducers.record.receipt import Executed
from reproducers.record.schema import Unreached
from reproducers.upstream import patching
from reproducers.upstream.patching import Hunk

Span = tuple[int, int]
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Statement(Hunk):
    """A statement of which the patch adds lines; ``texts`` are those that have code."""

    texts: tuple[str, ...]


def added(tree: Path, patch: Path, strip: int) -> list[Statement]:
    """The statements that the patch adds to ``tree``, which it is applied to. Lines of one statement are one."""
    found = []
    for path, lines in patching.added_lines(patch, strip).items():
        able = could_run(tree / path)
        spans: dict[Span, list[int]] = {}
        for number in sorted(lines.keys() & able.keys()):
            spans.setdefault(able[number], []).append(number)
        for (first, last), numbers in spans.items():
            texts = tuple(lines[number].strip() for number in numbers)
            found.append(Statement(f"{path}:{numbers[0]} {texts[0]}", path, first, last, texts))
    return found


def with_code(tree: Path, patch: Path, strip: int) -> list[Hunk]:
    """The patch's hunks in ``tree``, which it is applied to, but those of comments and empty lines: these never run.

    Each reaches to the ends of its statements: of a name that is imported between brackets the first line alone runs.
    One that only removes, between comments or empty lines, reaches to the code before and after it.
    """
    hunks, removing = patching.hunks(patch, strip, after=True), patching.removing(patch, strip)
    code = {hunk.path: _lines_with_code(tree / hunk.path) for hunk in hunks}
    spans = {hunk.path: _statements(tree / hunk.path) for hunk in hunks}
    return [
        _whole(_beside(hunk, code[hunk.path]), spans[hunk.path])
        for hunk in hunks
        if hunk.name in removing or _touches(hunk, code[hunk.path])
    ]


def _beside(hunk: Hunk, lines: set[int] | None) -> Hunk:
    """With the nearest lines that have code, if it has none itself."""
    if lines is None or _touches(hunk, lines):
        return hunk
    first = max((line for line in lines if line < hunk.first), default=hunk.first)
    last = min((line for line in lines if line > hunk.last), default=hunk.last)
    return dataclasses.replace(hunk, first=first, last=last)


def _whole(hunk: Hunk, spans: dict[int, Span]) -> Hunk:
    (first, _), (_, last) = (spans.get(line, (line, line)) for line in (hunk.first, hunk.last))
    return dataclasses.replace(hunk, first=first, last=last)


def _statements(path: Path) -> dict[int, Span]:
    """{line: (first, last) line of its innermost statement}; of what is no Python none."""
    if path.suffix != ".py" or not path.is_file():
        return {}
    try:
        return _claimed(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError):
        return {}


def _touches(hunk: Hunk, lines: set[int] | None) -> bool:
    return lines is None or not lines.isdisjoint(range(hunk.first, hunk.last + 1))


def _lines_with_code(path: Path) -> set[int] | None:
    """The lines of a Python file that are not empty nor comments alone; None where nobody can tell."""
    if path.suffix != ".py" or not path.is_file():
        return None
    try:
        with tokenize.open(path) as file:
            words = [word for word in tokenize.generate_tokens(file.readline) if word.type not in SILENT]
    except (SyntaxError, tokenize.TokenError):
        return None
    return {line for word in words for line in range(word.start[0], word.end[0] + 1)}


def could_run(path: Path) -> dict[int, Span]:
    """{line: (first, last) line of its statement} of the lines of a Python file that have code.

    A statement with a body ends before the body. A file that does not compile has none.
    """
    if path.suffix != ".py" or not path.is_file():
        return {}
    source = path.read_bytes()
    try:
        tree, code = ast.parse(source), compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    numbers = {number for part in nested(code) for _, _, number in part.co_lines() if number}
    spans = _claimed(tree)
    return {number: spans.get(number, (number, number)) for number in sorted(numbers)}


def _claimed(tree: ast.AST) -> dict[int, Span]:
    spans: dict[int, Span] = {}
    for node in ast.walk(tree):  # from the outside in: the innermost statement of a line is the last to claim it
        for first, last in _spans(node):
            spans |= dict.fromkeys(range(first, last + 1), (first, last))
    return spans


def _spans(node: ast.AST) -> Iterable[Span]:
    """The lines of a statement without those of its body; a decorator stands alone."""
    for decorator in getattr(node, "decorator_list", []):
        yield decorator.lineno, decorator.end_lineno
    if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
        place = node.pattern if isinstance(node, ast.match_case) else node
        body = [part for name in ("body", "cases") for part in getattr(node, name, [])]
        inner = min((_first(part) for part in body), default=0)
        last = max(place.lineno, inner - 1) if body else place.end_lineno
        yield place.lineno, last or place.lineno


def _first(node: ast.AST) -> int:
    lines = [place.lineno for place in getattr(node, "decorator_list", [])]
    start = node.pattern.lineno if isinstance(node, ast.match_case) else getattr(node, "lineno", 0)
    return int(min([start, *lines]))


def excused(statement: Statement, unreached: list[Unreached]) -> bool:
    """Whether a lane's list names the statement."""
    return any(entry.line in statement.texts for entry in unreached)


def at_odds(added: list[Statement], unreached: list[Unreached], executed: dict[str, Executed]) -> dict[Statement, str]:
    """{statement: what is wrong} of those that were not seen to run, and of those that ran though the list has them.

    An entry of the list is for every statement with its text; it is out of date once all of these run.
    """
    wrong = {}
    idle = [statement for statement in added if not patching.ran(statement, executed.get(statement.path))]
    for statement in added:
        if not excused(statement, unreached):
            if statement in idle:
                wrong[statement] = statement.name
        elif not any(set(statement.texts) & set(other.texts) for other in idle):
            wrong[statement] = f"{statement.name} is unreached by pack.yaml, yet it ran"
    return wrong
