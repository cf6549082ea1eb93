"""Patched trees: ``git apply`` with zero fuzz and zero offset, cached by (tree, patch), never near site-packages."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from unidiff import PatchSet
from unidiff.errors import UnidiffParseError

from reproducers.base.errors import PatchlaneError
from reproducers.probe.watch import Ranges
from reproducers.record.receipt import Executed
from reproducers.upstream.git import git
from reproducers.upstream.store import Store, Tree

COMPILED = {".pyc", ".pyo", ".pyd", ".so"}


class ApplyClass(str, Enum):
    CLEAN = "CLEAN"
    ALREADY_APPLIED = "ALREADY_APPLIED"
    CONFLICT = "CONFLICT"


@dataclass(frozen=True)
class Applicability:
    """How a patch meets a tree, what git said, and what to do about it."""

    kind: ApplyClass
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Hunk:
    """A hunk's lines in one tree: ``path`` inside the tree, first and last line to watch, and its name."""

    name: str
    path: str
    first: int
    last: int


def strip_for(tree: Path, source_root: str) -> int:
    """The ``-p`` for a patch in repository layout: wheels lack the repository's source root (``src/``)."""
    if source_root == "." or (tree / source_root).is_dir():
        return 1
    return 1 + len(Path(source_root).parts)


def import_root(tree: Path, source_root: str) -> Path:
    """The folder to put on the import path: the source root in a checkout, the top of an unpacked wheel."""
    inner = tree / source_root
    return inner if inner.is_dir() else tree


def _apply(tree: Path, patch: Path, strip: int, *flags: str) -> tuple[bool, str]:
    """(applies with neither fuzz nor offset, git's words)."""
    flags = (f"-p{strip}", "--verbose", "--whitespace=nowarn", *flags)
    done = git("apply", *flags, str(patch.resolve()), cwd=tree, above=tree.resolve().parent)
    offsets = re.findall(r"Hunk #\d+ succeeded at .*offset.*", done.stderr)
    return done.returncode == 0 and not offsets, "\n".join(offsets) or done.stderr.strip()


def classify(tree: Path, patch: Path, strip: int) -> Applicability:
    """CLEAN, ALREADY_APPLIED (the reverse applies: fixed tree or reversed patch) or CONFLICT (offsets included)."""
    if not files(patch):
        return Applicability(ApplyClass.CLEAN, "the patch changes nothing")
    clean, said = _apply(tree, patch, strip, "--check")
    if clean:
        return Applicability(ApplyClass.CLEAN, "applies with zero fuzz and zero offset")
    if _apply(tree, patch, strip, "--check", "--reverse")[0]:
        return Applicability(
            ApplyClass.ALREADY_APPLIED,
            "the tree already holds what the patch adds (or the patch is reversed)",
            "retire the pack for this release, or turn the patch round",
        )
    return Applicability(
        ApplyClass.CONFLICT, said, "rebase fix.patch on this tree: git apply --3way in a checkout, then git diff"
    )


def apply(tree: Path, patch: Path, strip: int) -> None:
    """Patch ``tree`` in place, with neither fuzz nor offset; PatchlaneError where that fails."""
    if files(patch):
        applied, said = _apply(tree, patch, strip)
        if not applied:
            raise PatchlaneError(f"{patch.name}: {said}", "run again; the tree changed under the patch")


def patched_tree(store: Store, tree: Tree, patch: Path, strip: int, number: int) -> Tree:
    """A copy of ``tree`` with the patch of pack ``number`` applied. PatchlaneError unless it is CLEAN."""
    found = classify(tree.path, patch, strip)
    if found.kind is not ApplyClass.CLEAN:
        raise PatchlaneError(f"{patch.name}: {found.kind.value}: {found.message}", found.remedy)
    key = hashlib.sha256(f"{tree.digest}\0{strip}\0".encode() + patch.read_bytes()).hexdigest()

    def fill(target: Path) -> None:
        shutil.copytree(tree.path, target, symlinks=True, dirs_exist_ok=True)
        apply(target, patch, strip)

    return store.tree("patched", key, tree.origin.on(number), fill)


def hunks(patch: Path, strip: int, *, after: bool) -> list[Hunk]:
    """Each hunk's changed lines in the tree after (or before) the patch; neighbours where it only removes (or adds)."""
    found = []
    for file in files(patch):
        name = (file.target_file if after else file.source_file) or ""
        path = "/".join(Path(name).parts[strip:])
        for number, hunk in enumerate(file, 1):
            numbers = [(x.target_line_no if after else x.source_line_no) for x in hunk if _changed(x, after)]
            if not numbers:
                numbers = _neighbours(hunk, after)
            if numbers:  # none before a file that the patch adds, nor after one that it deletes
                found.append(Hunk(f"{path} hunk {number}", path, min(numbers), max(numbers)))
    return found


def files(patch: Path) -> PatchSet:
    """The patch's files.

    PatchlaneError when it is no unified diff, or names an entry of which nobody could see whether it ran.
    """
    try:
        found = PatchSet(patch.read_text())
    except (UnidiffParseError, UnicodeDecodeError) as error:
        raise PatchlaneError(f"{patch}: not a unified diff: {error}", "regenerate it with git diff") from error
    for file in found:
        if kind := _unwatchable(file):
            raise PatchlaneError(f"{patch}: {file.path} is {kind}", "leave it out: only changed lines are seen to run")
    return found


def _unwatchable(file: Any) -> str:
    """What an entry is that has no lines to watch, or nothing."""
    about = str(file.patch_info or "").rpartition("diff --git ")[2]
    modes = set(re.findall(r"^(?:(?:new file|deleted file|old|new) mode|index \S+) (\d{6})$", about, re.M))
    if file.is_binary_file or Path(file.path).suffix in COMPILED:
        return "binary"
    if modes & {"120000", "160000"}:
        return "a link or a submodule"
    if re.search(r"^old mode ", about, re.M):
        return "a change of mode"
    return "a rename or copy without a change" if re.search(r"^similarity index 100%", about, re.M) else ""


def _changed(line: object, after: bool) -> bool:
    return bool(getattr(line, "is_added" if after else "is_removed"))


def _neighbours(hunk: Any, after: bool) -> list[int]:
    """The context lines that touch a pure removal (or addition)."""
    numbers: list[int] = []
    for one, two in zip(hunk, list(hunk)[1:], strict=False):
        for line, other in ((one, two), (two, one)):
            if line.is_context and not other.is_context:
                numbers.append(int(getattr(line, "target_line_no" if after else "source_line_no")))
    return numbers


def ranges(found: list[Hunk]) -> Ranges:
    """What the arm's watch needs: {path: [[first, last], ...]}."""
    result: Ranges = {}
    for hunk in found:
        result.setdefault(hunk.path, []).append([hunk.first, hunk.last])
    return result


def unexecuted(found: list[Hunk], executed: dict[str, Executed]) -> list[str]:
    """Hunks of which no line ran nor was compiled, and functions whose running code is not the tree's."""
    missing = []
    for hunk in found:
        seen = executed.get(hunk.path)
        lines = [n for n in seen.lines if hunk.first <= n <= hunk.last] if seen else []
        compiled = [c for c in seen.compiled if c.first <= hunk.last and hunk.first <= c.last] if seen else []
        if not lines and not compiled:
            missing.append(hunk.name)
    for path, seen in executed.items():
        missing += [f"{path}:{name} (the running code is not the tree's)" for name in seen.foreign]
    return missing
