"""Lines that a patch adds are as the upstream's own formatter leaves them."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, json_sha256, write_atomic
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.patch import formatters
from reproducers.desk.rules.patch.formatters import FORMATTERS, Formatter
from reproducers.desk.rules.patch.trees import PatchedFiles, applied
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.upstream import patching

Change = tuple[int, int, tuple[str, ...]]


def changes(text: str, formatter: Formatter, cache: Path) -> list[Change]:
    """(first line, line after the last, new lines) of each change that the formatter makes; cached by content.

    The content is the text, the formatter's installed release and the code that calls it. PatchlaneError when the
    formatter stops.
    """
    kept = cache / "format" / f"{json_sha256([formatter.config, formatter.releases(), _code(), text])}.json"
    if not kept.is_file():
        write_atomic(kept, json.dumps(_changes(text, formatter)).encode())
    return [(first, end, tuple(wanted)) for first, end, wanted in json.loads(kept.read_text())]


@functools.cache
def _code() -> list[str]:
    return [file_sha256(Path(str(file))) for file in (__file__, formatters.__file__)]


def _changes(text: str, formatter: Formatter) -> list[Change]:
    try:
        wanted = formatter.run(text).splitlines()
    except Exception as error:  # an error of any type is the formatter's word on the text
        raise PatchlaneError(f"the upstream's formatter stops: {str(error).strip()[:120]}") from error
    codes = difflib.SequenceMatcher(a=text.splitlines(), b=wanted, autojunk=False).get_opcodes()
    return [(i1 + 1, i2 + 1, tuple(wanted[j1:j2])) for code, i1, i2, j1, j2 in codes if code != "equal"]


def altered(before: str, after: str, added: set[int], formatter: Formatter, cache: Path) -> Iterator[tuple[int, str]]:
    """(an added line, wanted text) for each change of an added line that the pristine file does not need."""
    touching = []
    for first, end, wanted in changes(after, formatter, cache):
        near = (set(range(first, end)) if end > first else {first - 1, first}) & added
        if near:
            touching.append((min(near), wanted))
    owed = {wanted for _, _, wanted in changes(before, formatter, cache)} if touching else set()
    yield from ((line, " ".join(wanted).strip()) for line, wanted in touching if wanted not in owed)


@rule("format-upstream", "every line that a patch adds is as the upstream's own formatter writes it")
def upstream(case: Case) -> Iterator[Breach | Skip]:
    formatter = FORMATTERS.get(case.pack.upstream.repo)
    if formatter is None or not case.patches:
        return
    if formatter.missing():
        yield Skip(f"the upstream's formatter is not installed: {formatter.missing()}")
        return
    done: set[tuple[Path, str]] = set()
    for name, path in case.patches.items():
        images = applied(case, name)
        if isinstance(images, str):
            yield Skip(images)
        elif images.after and (path, case.pack.pins[name].release or "") not in done:
            done.add((path, case.pack.pins[name].release or ""))
            yield from _faults(path, images, formatter, case.store / "cache")


def _faults(path: Path, images: PatchedFiles, formatter: Formatter, cache: Path) -> Iterator[Breach]:
    lines = path.read_text(encoding="utf-8").splitlines()
    remedy = f"run the formatter of {formatter.config}, then git diff"
    for file in patching.files(path):
        inside = next((name for name in images.after if file.path.endswith(name)), None)
        if inside is None or not inside.endswith(".py"):
            continue
        added = {x.target_line_no for hunk in file for x in hunk if x.is_added}
        before, after = images.before.get(inside, ""), images.after[inside]
        try:
            wrong = list(altered(before, after, added, formatter, cache))
        except PatchlaneError as error:
            yield Breach(path, lines.index(f"+++ {file.target_file}") + 1, f"{inside}: {error.what}", remedy)
            continue
        for number, wanted in wrong:
            line = "+" + after.splitlines()[number - 1]
            what = f"{inside}:{number} is not formatted; wanted {wanted[:80]!r}"
            yield Breach(path, lines.index(line) + 1 if line in lines else 1, what, remedy)
