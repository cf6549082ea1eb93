"""A patch is small, applies as it stands, and stays inside the package that it fixes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patchlane.base.errors import PatchlaneError
from reproducers.desk.patches.trees import tree_of
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.patch.trees import applied
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.upstream import patching
from reproducers.upstream.patching import ApplyClass

LEFTOVER = re.compile(r"(?<![\w.])(?:print|breakpoint)\(|\bpdb\b|\b(?:TODO|FIXME|XXX)\b")


def _patches(case: Case) -> Iterator[tuple[Path, Any]]:
    """(patch, its files) of each patch that can be read."""
    for path in dict.fromkeys(case.patches.values()):
        try:
            yield path, patching.files(path)
        except PatchlaneError:
            continue  # patch-clean says so


def _line(path: Path, text: str) -> int:
    """The number of a line in the patch file."""
    lines = path.read_bytes().decode().split("\n")
    return next((n for n, line in enumerate(lines, 1) if line.rstrip("\r") == text.rstrip("\r\n")), 1)


@rule("patch-scope", "a patch touches Python files of the declared package only, in folders of the pinned tree")
def scope(case: Case) -> Iterator[Breach | Skip]:
    upstream = case.pack.upstream
    root = Path(upstream.source_root, *upstream.package.split("."))
    for path, files in _patches(case):
        tree = tree_of(case.pack, case.pack.pins[_pin(case, path)], case.store)
        for file in files:
            why = _outside(Path(file.path), root, file.is_added_file, tree, upstream.source_root)
            if why:
                line = _line(path, f"+++ {file.target_file}")
                yield Breach(path, line, f"{file.path} {why}", f"change {root.as_posix()}/ only, in files that it has")


def _pin(case: Case, path: Path) -> str:
    return next(name for name, patch in case.patches.items() if patch == path)


def _outside(file: Path, root: Path, added: bool, tree: Path | None, source_root: str) -> str:
    if not file.is_relative_to(root) or ".." in file.parts:
        return f"is not under {root.as_posix()}/"
    if file.suffix != ".py":
        return "is no Python file"
    if tree is None:
        return ""
    there = tree / Path(*file.parts[patching.strip_for(tree, source_root) - 1 :])
    return "" if there.is_file() or (added and there.parent.is_dir()) else "is not in the pinned tree"


@rule("patch-clean", "every patch applies to its pin with neither fuzz nor offset")
def clean(case: Case) -> Iterator[Breach | Skip]:
    for name, path in case.patches.items():
        images = applied(case, name)
        if isinstance(images, str):
            yield Skip(images)
        elif images.kind is not ApplyClass.CLEAN:
            message = " ".join(images.message.split())[:200]
            what = f"{images.kind.value} on pin {name} ({case.pack.pins[name].origin}): {message}"
            yield Breach(path, 1, what, "rebase it on that tree: git apply --3way in a checkout, then git diff")


@rule("patch-minimal", "no hunk changes whitespace only; no trailing space, carriage return or stray tab is added")
def minimal(case: Case) -> Iterator[Breach | Skip]:
    for path, files in _patches(case):
        for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):  # parsed lines have lost it
            if raw.startswith(b"+") and raw.endswith(b"\r"):
                yield Breach(path, number, "an added line ends in a carriage return", "take it out of the patch")
        for file in files:
            for hunk in file:
                yield from _whitespace(path, hunk)


def _whitespace(path: Path, hunk: Any) -> Iterator[Breach]:
    removed, added = ([_squeezed(x.value) for x in hunk if getattr(x, kind)] for kind in ("is_removed", "is_added"))
    first = next(str(x) for x in hunk if not x.is_context)
    if [x for x in removed if x] == [x for x in added if x]:
        yield Breach(path, _line(path, first), "a hunk that changes whitespace only", "drop the hunk")
        return
    tabbed = any("\t" in x.value for x in hunk if not x.is_added)
    for line in (x for x in hunk if x.is_added):
        text = line.value.rstrip("\n")
        if text != text.rstrip() or ("\t" in text and not tabbed):
            what = "an added line ends in whitespace" if text != text.rstrip() else "an added line has a tab"
            yield Breach(path, _line(path, str(line)), what, "take it out of the patch")


def _squeezed(text: str) -> str:
    return "".join(text.split())


@rule("patch-leftover", "no added line prints, stops in a debugger or leaves work for later")
def leftover(case: Case) -> Iterator[Breach | Skip]:
    for path, files in _patches(case):
        kept = {x.value.strip() for file in files for hunk in file for x in hunk if x.is_removed}
        for line in (x for file in files for hunk in file for x in hunk if x.is_added):
            match = LEFTOVER.search(line.value)
            if match and line.value.strip() not in kept:
                yield Breach(
                    path, _line(path, str(line)), f"an added line has {match[0]!r}", "take it out of the patch"
                )
