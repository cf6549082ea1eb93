"""The mutants that operators make of the lines which a patch adds, in a fixed order and with stable names."""

from __future__ import annotations

import difflib
import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reproducers.probe.codehash import code_sha256
from reproducers.record.mutation import in_order
from reproducers.record.schema import Pack
from reproducers.studies.mutation.operators import OPERATORS
from reproducers.studies.mutation.source import Source
from reproducers.upstream import patching


@dataclass(frozen=True)
class Generated:
    """One mistake in one file: ``path`` as the patch names it, the file's text with and without the mistake.

    ``name`` is the operator and a digest of the touched lines, their file and function: it stays when others move.
    """

    name: str
    path: str
    line: int
    scope: str
    before: str
    after: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" + (f" {self.scope}" if self.scope else "")

    @property
    def diff(self) -> str:
        """A small diff of the patched file."""
        old, new = ([*io.StringIO(text)] for text in (self.before, self.after))
        rows = difflib.unified_diff(old, new, f"patched {self.path}", "mutant", n=1)
        return "".join(row if row.endswith("\n") else row + "\n" for row in rows)

    @property
    def exchanged(self) -> tuple[frozenset[str], frozenset[str]]:
        """The lines that the mistake takes away and those that it puts in their place, stripped."""
        rows = self.diff.splitlines()[3:]
        return tuple(frozenset(row[1:].strip() for row in rows if row[0] == sign) for sign in "-+")  # type: ignore[return-value]


def added_lines(patch: Path) -> dict[str, frozenset[int]]:
    """{Python file, as the patch names it: the numbers of the lines that the patch adds}."""
    added = {}
    for file in patching.files(patch):
        numbers = frozenset(line.target_line_no for hunk in file for line in hunk if line.is_added)
        if file.path.endswith(".py") and numbers:
            added[file.path] = numbers
    return added


def of(pack: Pack, root: Path) -> list[Generated]:
    """All mutants of a pack's added lines; ``root`` holds the patched files under the names that the patch has.

    Left out is what does not compile, what compiles to the same as the fix, and what another mutant compiles to.
    """
    mutants = []
    for path, lines in sorted(added_lines(pack.patch).items()):
        mutants += in_file(path, (root / path).read_bytes().decode(), lines)
    return mutants


def in_file(path: str, text: str, added: frozenset[int]) -> list[Generated]:
    """The mutants of one file, in the order of their places."""
    source = Source(text, added)
    rows = []
    for node, scope in source.nodes():
        for place, (operator, mistake) in enumerate(OPERATORS.items()):
            edits = (edit for edit in mistake(source, node) if source.within(edit))
            rows += [(edit.start, edit.end, place, edit.text, operator, scope, edit) for edit in edits]
    seen, names, mutants = {compiled(text)}, Counter[str](), []
    for *_, operator, scope, edit in sorted(rows, key=lambda row: row[:4]):
        after = source.edited(edit)
        code = compiled(after)
        if code is None or code in seen:
            continue
        seen.add(code)
        name = f"{operator}-{_digest(path, scope, *source.change(edit))}"
        names[name] += 1
        name += f"-{names[name]}" if names[name] > 1 else ""
        mutants.append(Generated(name, path, source.line(edit.start), scope, text, after))
    return mutants


def compiled(text: str) -> str | None:
    """Digest of what a file does once compiled, wherever its lines stand; None where it does not compile."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return code_sha256(compile(text, "mutant", "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return None


def sample(mutants: list[Generated], number: int | None, seed: int) -> list[Generated]:
    """``number`` of them, None for all, in the order in which ``seed`` draws them; it hangs on their names alone."""
    by_name = {mutant.name: mutant for mutant in mutants}
    return [by_name[name] for name in in_order(list(by_name), seed)][:number]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def listing(mutants: list[Generated]) -> Iterator[str]:
    """A line a mutant: its name, its place, and what becomes of the line."""
    for mutant in mutants:
        rows = mutant.diff.splitlines()[3:]
        change = " -> ".join(" ".join(row[1:].strip() for row in rows if row[0] == sign) for sign in "-+")
        yield f"{mutant.name}  {mutant.where}  {change}"
