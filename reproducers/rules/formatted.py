"""What a patch adds is as the upstream's own formatter leaves it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from reproducers import patching
from reproducers.rules.case import Case
from reproducers.rules.formatters import FORMATTERS, Formatter
from reproducers.rules.registry import Found, Skip, rule
from reproducers.rules.trees import Applied, applied

Change = tuple[int, int, tuple[str, ...]]


def changes(text: str, formatter: Formatter) -> list[Change]:
    """(first line, line after the last, what they become) of all that the formatter alters."""
    lines, wanted = text.splitlines(), formatter.run(text).splitlines()
    codes = difflib.SequenceMatcher(a=lines, b=wanted, autojunk=False).get_opcodes()
    return [(i1 + 1, i2 + 1, tuple(wanted[j1:j2])) for code, i1, i2, j1, j2 in codes if code != "equal"]


def altered(before: str, after: str, added: set[int], formatter: Formatter) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(an added line, what is wanted) for each change that touches one and is not owed to the pristine file."""
    found = changes(after, formatter)
    owed = {wanted for _, _, wanted in changes(before, formatter)} if found else set()
    for first, end, wanted in found:
        near = sorted(set(range(first, end)) & added if end > first else {first - 1, first} & added)
        if near and wanted not in owed:
            yield near[0], wanted


@rule("format-upstream", "every line that a patch adds is as the upstream's own formatter writes it")
def upstream(case: Case) -> Iterator[Found | Skip]:
    formatter = FORMATTERS.get(case.pack.upstream.repo)
    if formatter is None or not case.patches:
        return
    if formatter.missing():
        yield Skip(f"the upstream's formatter is not installed: {formatter.missing()}")
        return
    for name, path in case.patches.items():
        found = applied(case, name)
        if isinstance(found, Applied):
            yield from _faults(path, found, formatter)


def _faults(path: Path, found: Applied, formatter: Formatter) -> Iterator[Found]:
    lines = path.read_text(encoding="utf-8").splitlines()
    for file in patching.files(path):
        inside = next((name for name in found.after if file.path.endswith(name)), None)
        if inside is None or not inside.endswith(".py"):
            continue
        added = {x.target_line_no for hunk in file for x in hunk if x.is_added}
        before, after = found.before.get(inside, ""), found.after[inside]
        for number, wanted in altered(before, after, added, formatter):
            line = "+" + after.splitlines()[number - 1]
            what = f"{inside}:{number} is not formatted; wanted {' '.join(wanted).strip()[:80]!r}"
            where = lines.index(line) + 1 if line in lines else 1
            yield Found(path, where, what, f"run the formatter of {formatter.config}, then git diff")
