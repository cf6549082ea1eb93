"""Patched trees: ``git apply`` with zero fuzz and zero offset, cached by (tree, patch), never near site-packages."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from unidiff import PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import astray, temporary, within
from reproducers.probe.watch import Ranges
from reproducers.record.receipt import Executed
from reproducers.upstream.git import git
from reproducers.upstream.store import Store, Tree, writable

NOTHING = "No hunk is left of the patch.\n"  # what stands in a patch that was emptied on purpose
COMPILED = {".pyc", ".pyo", ".pyd", ".so"}
# what a fix has no use for, and code that means to find the probe, to deceive it or to end its process has
SUSPECT = re.compile(
    r"\b_getframe\b|\bgc\.get_|\binspect\.stack\b|\bcurrentframe\b|__main__|\batexit\b|\b_exit\b"
    r"|\bset(?:trace|profile)\b|\bsys\.monitoring\b|\bctypes\b|(?<![\w.])(?:exec|compile)\(|\breproducers\b|patchlane",
    re.IGNORECASE,
)
# by which code learns where and for whom it runs: a fix may read a setting of its own there, and a reader has to know
PLACE = re.compile(
    r"\b(?:orig_)?argv\b|__file__|__path__|\bsys\.(?:path|executable|prefix|base_prefix|modules|flags)\b|site-packages|/proc\b"
    r"|\benviron\b|\bgetenv\b|\bgetcwd\b|\.cwd\(|\bgethostname\b|\bplatform\.node\b|\bgetpid\b|\bgetppid\b"
    r"|\bgetpass\b|\bgetuser\b|\bgetlogin\b|\bgetuid\b|\bgettempdir\b|\bsysconfig\b|\bimportlib\.metadata\b"
    r"|\b(?:time|monotonic|perf_counter)\(\)|\bdatetime\b"
)


class ApplyClass(str, Enum):
    CLEAN = "CLEAN"
    ALREADY_APPLIED = "ALREADY_APPLIED"
    CONFLICT = "CONFLICT"


@dataclass(frozen=True)
class Applicability:
    """How a patch applies to a tree, git's message, and the remedy."""

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

    def holds(self, other: Hunk) -> bool:
        """Whether the other's lines touch this one's."""
        return self.path == other.path and self.first <= other.last and other.first <= self.last


def strip_for(tree: Path, source_root: str) -> int:
    """git's ``-p`` for a patch in repository layout: wheels lack the repository's source root (``src/``)."""
    if source_root == "." or (tree / source_root).is_dir():
        return 1
    return 1 + len(Path(source_root).parts)


def import_root(tree: Path, source_root: str) -> Path:
    """The folder to put on the import path: the source root in a checkout, the top of an unpacked wheel."""
    inner = within(tree, source_root) if source_root != "." else tree
    return inner if inner.is_dir() else tree


def _apply(tree: Path, patch: Path, strip: int, *flags: str) -> tuple[bool, str]:
    """(whether the patch applies with neither fuzz nor offset, git's message)."""
    flags = (f"-p{strip}", "--verbose", "--whitespace=nowarn", *flags)
    done = git("apply", *flags, str(patch.resolve()), cwd=tree, above=tree.resolve().parent)
    offsets = re.findall(r"Hunk #\d+ succeeded at .*offset.*", done.stderr)
    return done.returncode == 0 and not offsets, "\n".join(offsets) or done.stderr.strip()


def classify(tree: Path, patch: Path, strip: int, source_root: str = ".") -> Applicability:
    """CLEAN, ALREADY_APPLIED (the reverse applies: fixed tree or reversed patch) or CONFLICT (also for an offset).

    Raises PatchlaneError if the patch adds a module or package beside the tree's own, which would shadow a library.
    """
    for path in _beside(tree, patch, strip, import_root(tree, source_root)):
        raise PatchlaneError(
            f"{patch}: {path} would be importable under a new name, as a library is",
            "add the file inside a package that upstream has",
        )
    if not files(patch):
        return Applicability(ApplyClass.CLEAN, "the patch changes nothing")
    if (read := _as_git_reads(tree, patch, strip)) is not None and read != _as_watched(patch, strip):
        raise PatchlaneError(f"{patch}: git reads other changes in it than are watched", "regenerate it with git diff")
    clean, message = _apply(tree, patch, strip, "--check")
    if clean:
        return Applicability(ApplyClass.CLEAN, "applies with zero fuzz and zero offset")
    if _apply(tree, patch, strip, "--check", "--reverse")[0]:
        return Applicability(
            ApplyClass.ALREADY_APPLIED,
            "the tree already holds what the patch adds (or the patch is reversed)",
            "retire the pack for this release, or turn the patch round",
        )
    return Applicability(
        ApplyClass.CONFLICT, message, "rebase fix.patch on this tree: git apply --3way in a checkout, then git diff"
    )


def touched(patch: Path, strip: int) -> list[str]:
    """The paths below the import root that a patch changes, those that it adds included."""
    names = (name for file in files(patch) for name in (file.source_file, file.target_file) if name != "/dev/null")
    return sorted({"/".join(Path(name).parts[strip:]) for name in names})


def apply(tree: Path, patch: Path, strip: int) -> None:
    """Patch ``tree`` in place. Raises PatchlaneError unless the patch applies with neither fuzz nor offset."""
    if files(patch):
        applied, message = _apply(tree, patch, strip)
        if not applied:
            raise PatchlaneError(f"{patch.name}: {message}", "run again; the tree changed under the patch")


def _as_git_reads(tree: Path, patch: Path, strip: int) -> dict[str, tuple[str, str]] | None:
    """{path: (lines added, lines removed)} of the patch by git; None if git cannot read it, and so cannot apply it."""
    flags = ("--numstat", "-z", f"-p{strip}", "--whitespace=nowarn")
    done = git("apply", *flags, str(patch.resolve()), cwd=tree, above=tree.resolve().parent)
    rows = [row.split("\t", 2) for row in done.stdout.split("\0") if row]
    return None if done.returncode else {path: (added, removed) for added, removed, path in rows}


def _as_watched(patch: Path, strip: int) -> dict[str, tuple[str, str]]:
    """The same of the patch as it is watched."""
    rows = {}
    for file in files(patch):
        name = file.source_file if file.target_file == "/dev/null" else file.target_file
        rows["/".join(Path(name).parts[strip:])] = (str(file.added), str(file.removed))
    return rows


def _beside(tree: Path, patch: Path, strip: int, root: Path) -> list[str]:
    """The patch's files at the top of the import path, or of the tree, under a name that is not there yet."""
    names = []
    for file in files(patch):
        path = tree.joinpath(*Path(file.target_file).parts[strip:])
        top = root if path.is_relative_to(root) else tree
        if file.target_file != "/dev/null" and not (top / path.relative_to(top).parts[0]).exists():
            names.append(str(file.path))
    return names


def patched_tree(store: Store, tree: Tree, patch: Path, strip: int, number: int, source_root: str = ".") -> Tree:
    """A copy of ``tree`` with the patch of pack ``number``. Raises PatchlaneError unless the patch is CLEAN."""
    _refuse_unclean(tree, patch, strip, source_root)
    key = hashlib.sha256(f"{tree.digest}\0{strip}\0".encode() + patch.read_bytes()).hexdigest()

    def fill(target: Path) -> None:
        shutil.copytree(tree.path, target, symlinks=True, copy_function=writable, dirs_exist_ok=True)
        apply(target, patch, strip)

    return store.tree("patched", key, tree.origin.on(number), fill)


def patched_files(tree: Tree, patch: Path, strip: int, source_root: str = ".") -> dict[str, bytes]:
    """{path: content} of the files of ``tree`` that the patch leaves changed. Raises as ``patched_tree`` does."""
    _refuse_unclean(tree, patch, strip, source_root)
    with temporary() as scratch:
        copy = Path(scratch)
        for name in touched(patch, strip):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            if (tree.path / name).is_file():
                writable(str(tree.path / name), str(copy / name))
        apply(copy, patch, strip)
        return {name: (copy / name).read_bytes() for name in touched(patch, strip) if (copy / name).is_file()}


def _refuse_unclean(tree: Tree, patch: Path, strip: int, source_root: str) -> None:
    fit = classify(tree.path, patch, strip, source_root)
    if fit.kind is not ApplyClass.CLEAN:
        raise PatchlaneError(f"{patch.name}: {fit.kind.value}: {fit.message}", fit.remedy)


def hunks(patch: Path, strip: int, *, after: bool) -> list[Hunk]:
    """Each hunk's changed lines in the tree after (or before) the patch.

    A hunk that only removes (or adds) has the lines beside the change.
    """
    ranged = []
    for file in files(patch):
        path = _path(file, strip, after)
        for number, hunk in enumerate(file, 1):
            numbers = [(x.target_line_no if after else x.source_line_no) for x in hunk if _changed(x, after)]
            if not numbers:
                numbers = _neighbours(hunk, after)
            if numbers:  # none before a file that the patch adds, nor after one that it deletes
                ranged.append(Hunk(_name(path, number), path, min(numbers), max(numbers)))
    return ranged


def _path(file: PatchedFile, strip: int, after: bool) -> str:
    return "/".join(Path((file.target_file if after else file.source_file) or "").parts[strip:])


def _name(path: str, number: int) -> str:
    return f"{path} hunk {number}"


def removing(patch: Path, strip: int) -> set[str]:
    """The names of the hunks that remove more than comments and empty lines."""
    return {
        _name(_path(file, strip, after=True), number)
        for file in files(patch)
        for number, hunk in enumerate(file, 1)
        if any(line.is_removed and line.value.strip() and not line.value.lstrip().startswith("#") for line in hunk)
    }


def decorators(patch: Path, strip: int) -> list[frozenset[int]]:
    """Of each hunk of ``hunks(after=True)`` the lines of decorators, counted from its first: an import runs them."""
    found, entries = [], files(patch)
    for hunk in hunks(patch, strip, after=True):
        (file,) = (one for one in entries if "/".join(Path(one.target_file).parts[strip:]) == hunk.path)
        texts = {line.target_line_no: line.value.lstrip() for part in file for line in part if line.target_line_no}
        inside, lines = False, set[int]()
        for number in range(hunk.first, hunk.last + 1):
            text = texts.get(number, "")
            inside = text.startswith("@") or (inside and not text.startswith(("def ", "async def ", "class ")))
            lines |= {number - hunk.first} if inside else set()
        found.append(frozenset(lines))
    return found


def added_lines(patch: Path, strip: int) -> dict[str, dict[int, str]]:
    """{path in the patched tree: {line number: text}} of the lines that the patch adds.

    A line that it removes elsewhere in the file, however indented, is moved, not added: once for each that is removed.
    """
    return {"/".join(Path(file.target_file).parts[strip:]): dict(_added(file)) for file in files(patch)}


def placed(patch: Path) -> list[str]:
    """``FILE:LINE names WORD`` of each line that the patch adds and by which code learns where and when it runs."""
    return [
        f"{path}:{number} names {word[0]}"
        for path, lines in added_lines(patch, 1).items()
        for number, text in lines.items()
        if (word := PLACE.search(text))
    ]


def _added(file: PatchedFile) -> Iterator[tuple[int, str]]:
    removed = Counter(line.value.strip() for hunk in file for line in hunk if line.is_removed)
    for line in (line for hunk in file for line in hunk if line.is_added):
        text = line.value.strip()
        if removed[text] > 0:
            removed[text] -= 1
        else:
            yield int(line.target_line_no), str(line.value)


def refuse_empty(patch: Path) -> None:
    """Raises PatchlaneError if the file has no diff: cut off, it would be a fix that changes nothing."""
    if not files(patch) and patch.read_text() != NOTHING:
        raise PatchlaneError(f"{patch}: no diff", f"git checkout -- {patch}, or regenerate it with git diff")


def files(patch: Path) -> PatchSet:
    """The patch's files, shared by all who ask: to be read, never changed.

    Raises PatchlaneError if the patch is no unified diff, names a file outside the tree, or has an entry that cannot be
    seen to run.
    """
    try:
        return _files(patch, patch.read_text())
    except UnicodeDecodeError as error:
        raise PatchlaneError(f"{patch}: not a unified diff: {error}", "regenerate it with git diff") from error


@functools.lru_cache(maxsize=256)
def _files(patch: Path, text: str) -> PatchSet:
    try:
        entries = PatchSet(text)
    except UnidiffParseError as error:
        raise PatchlaneError(f"{patch}: not a unified diff: {error}", "regenerate it with git diff") from error
    for file in entries:
        for name in {file.source_file, file.target_file} - {"/dev/null"}:
            if why := astray(name.strip('"').replace("\\", "/")):  # git quotes and escapes some names
                raise PatchlaneError(f"{patch}: {name!r} {why}", "regenerate it with git diff in the checkout")
        if kind := _unwatchable(file):
            raise PatchlaneError(f"{patch}: {file.path} is {kind}", "leave it out: only changed lines are seen to run")
        for line in (line for hunk in file for line in hunk if line.is_added):
            if word := SUSPECT.search(line.value):
                raise PatchlaneError(
                    f"{patch}: {file.path}:{line.target_line_no} names {word[0]}, by which code can deceive the probe",
                    "write the fix without it",
                )
    return entries


def _unwatchable(file: Any) -> str:
    """The kind of an entry that has no lines to watch, "" for any other entry."""
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
    for pair in itertools.pairwise(hunk):
        for line, other in itertools.permutations(pair):
            if line.is_context and not other.is_context:
                numbers.append(int(getattr(line, "target_line_no" if after else "source_line_no")))
    return numbers


def ranges(watched: Iterable[Hunk]) -> Ranges:
    """{path: [[first, last], ...]} of the hunks, for the arm's watch."""
    result: Ranges = {}
    for hunk in watched:
        result.setdefault(hunk.path, []).append([hunk.first, hunk.last])
    return result


def unexecuted(watched: list[Hunk], executed: dict[str, Executed]) -> list[str]:
    """Hunks of which no line ran or was compiled, and functions whose running code is not the tree's."""
    missing = [hunk.name for hunk in watched if not ran(hunk, executed.get(hunk.path))]
    for path, file in executed.items():
        missing += [f"{path}:{name} (the running code is not the tree's)" for name in file.foreign]
    return missing


def ran(hunk: Hunk, file: Executed | None) -> bool:
    """Whether a line of the hunk ran or was compiled."""
    return file is not None and (
        any(hunk.first <= line <= hunk.last for line in file.lines)
        or any(source.first <= hunk.last and hunk.first <= source.last for source in file.compiled)
    )
