"""A queue on trees: each patch alone, and on top of those before it, by file and hunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from patchlane.base.errors import PatchlaneError
from reproducers.carried.entry import Carried
from reproducers.carried.meeting import history, judging, trees
from reproducers.carried.meeting.judging import CANNOT, CONFLICTS, GONE, NOT_THERE, Changes, FileMet
from reproducers.carried.meeting.trees import Tree
from reproducers.carried.patches.diffs import FileDiff
from reproducers.upstream.git import git

FAILS = (CONFLICTS, GONE)


class Row(NamedTuple):
    """An entry on a tree, on top of the entries before it. ``alone``: the word without them, "" where it is the same;
    ``alone_files`` are the files that differ then."""

    entry: str
    tree: str
    word: str
    files: list[FileMet]
    alone: str = ""
    alone_files: list[FileMet] = []  # noqa: RUF012
    sha: str | None = None
    why: str = ""


def meet(entries: list[Carried], tree: Tree) -> list[Row]:
    """Each entry of a queue on a tree, in order; what of an entry does not apply is not there for the next one."""
    rows, below = list[Row](), Changes()
    for entry in entries:
        own, top, alone = Changes(), list[FileMet](), list[FileMet]()
        for file in entry.diff.files:
            met, changes = _met(file, tree, below)
            one, own_changes = _met(file, tree, own) if rows else (met, changes)
            top.append(met)
            alone.append(one)
            below |= changes
            own |= own_changes
        differing = [one for one, met in zip(alone, top, strict=True) if one.word != met.word]
        word, without = word_of(top), word_of(alone)
        rows.append(Row(entry.id, tree.label, word, top, without if differing else "", differing, tree.sha))
    return rows


def plain(word: str) -> str:
    """The word without the difference that an offset makes."""
    return judging.APPLIES if word in judging.FITS else word


def word_of(files: Iterable[FileMet]) -> str:
    """The word of a patch: the worst of the files that could be judged."""
    words = [file.word for file in files]
    judged = [word for word in words if word not in (NOT_THERE, CANNOT)]
    return judging.worst(judged or words)


def _met(file: FileDiff, tree: Tree, over: Changes) -> tuple[FileMet, Changes]:
    met, changes = judging.meet(file, tree.over(over))
    if tree.wheel and (met.word == GONE or file.source is None) and not _packaged(file.path, tree):
        why = "it is in no wheel: --upstream CLONE judges it"
        return FileMet(file.path, NOT_THERE, [], why), {}
    return met, changes


def _packaged(path: str, tree: Tree) -> bool:
    """Whether a wheel would have a file of this path: Python code of a folder that the wheel has."""
    folder = str(PurePosixPath(path).parent)
    return path.endswith(".py") and any(name.startswith(f"{folder}/") for name in tree.names)


def explained(row: Row, diffs: Sequence[FileDiff], tree: Tree, clone: Path | None, base: str | None) -> Row:
    """The row of these files with what a clone's history says of each conflict; without one, where a name is now."""
    files = []
    for met, file in zip(row.files, diffs, strict=True):
        if met.word == GONE:
            met = met._replace(why=f"{met.why}{_went(file, tree, clone, base)}")
        elif met.word == CONFLICTS and clone and base and tree.sha and file.source:
            hunks = []
            for hunk in met.hunks:
                if hunk.differs:
                    by = history.changed(clone, base, tree.sha, file.source, hunk.differs.expected, hunk.differs.there)
                    hunk = hunk._replace(by=by)
                hunks.append(hunk)
            met = met._replace(hunks=hunks)
        files.append(met)
    return row._replace(files=files)


def _went(file: FileDiff, tree: Tree, clone: Path | None, base: str | None) -> str:
    source = str(file.source)
    commit, new = history.moved(clone, base, tree.sha, source) if clone and base and tree.sha else ("", None)
    if commit:
        return f"; {commit}" + (f" moved it to {new}" if new else " took it away")
    alike = sorted(name for name in tree.names if PurePosixPath(name).name == PurePosixPath(source).name)
    alike = [name for name in alike if PurePosixPath(name).name != "__init__.py"]
    return f"; of this name there is {', '.join(alike[:3])}" if alike else ""


def changes_between(entries: list[Carried], clone: Path, span: str) -> Iterator[tuple[Tree, list[Row]]]:
    """The queue at each commit of ``A..B`` that touches its files, oldest first, where a word changes; A and B too.

    An offset is no change. PatchlaneError for an end that the clone has not.
    """
    ends = span.split("..")
    if len(ends) != 2 or not all(ends):
        raise PatchlaneError(f"--commits {span}: not A..B", "--commits core_v0.18.0..core_v0.19.0")
    paths, (first, last) = trees.wanted(entries), (trees.commit(clone, end) for end in ends)
    done = git("rev-list", "--reverse", "--topo-order", f"{first}..{last}", "--", *sorted(paths), cwd=clone)
    before: list[list[str]] | None = None
    for sha in dict.fromkeys([first, *done.stdout.split(), last]):
        tree = trees.of_commit(clone, sha, sha, paths)
        rows = meet(entries, tree)
        words = [[plain(file.word) for file in row.files] for row in rows]
        if words != before or sha == last:
            yield tree, rows
        before = words
