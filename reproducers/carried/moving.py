"""A queue moved onto a new base, hunk by hunk: three-way by the files of its old base.

What cannot be moved is named by file and hunk and kept as it was given; the originals are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from reproducers.carried.entry import Carried
from reproducers.carried.meeting import judging
from reproducers.carried.meeting.judging import CONFLICTS, FITS, IN, Changes, FileMet, HunkMet, Read
from reproducers.carried.meeting.trees import Tree
from reproducers.carried.patches.diffs import FileDiff, Hunk
from reproducers.upstream import merging


class Left(NamedTuple):
    """What of a file could not be moved: how its hunks met the new tree, the file by its path there, and the bytes of
    the patch that are left."""

    met: FileMet
    file: FileDiff
    raw: bytes


class Moved(NamedTuple):
    """An entry on the new base: the content of its files before and after, what was taken over as it is, what is left.

    An entry of which nothing is in ``after``, ``verbatim`` or ``left`` is in upstream.
    """

    entry: Carried
    before: Changes
    after: Changes
    verbatim: list[FileDiff]
    left: list[Left]


def move(entries: list[Carried], base: Tree, target: Tree, renamed: Mapping[str, str]) -> list[Moved]:
    """Each entry of a queue on the target, on top of those before it.

    ``renamed``: {path at the base: path at the target} of files that upstream moved.
    """
    old, new, moved = Changes(), Changes(), list[Moved]()
    for entry in entries:
        start, verbatim, left = dict(new), list[FileDiff](), list[Left]()
        for file in entry.diff.files:
            was, now = base.over(old), target.over(new)
            there = _at(file, renamed, now)
            changes, conflict = _file(file, there, was, now)
            if conflict:
                left.append(conflict)
            elif not there.hunks and there.source == there.target and judging.meet(there, now)[0].word in FITS:
                verbatim.append(there)  # a change of mode, or of a binary file that is the same there
            new |= changes
            old |= judging.meet(file, was)[1]
        touched = sorted({*new} - {path for path in new if path in start and start[path] == new[path]})
        read = target.over(start)
        before = {path: read(path) for path in touched}
        moved.append(Moved(entry, before, {path: new[path] for path in touched}, verbatim, left))
    return moved


def _at(file: FileDiff, renamed: Mapping[str, str], now: Read) -> FileDiff:
    """The file's change where upstream has the file today."""
    new = renamed.get(file.source or "")
    if new is None or file.source != file.target or now(str(file.source)) is not None or now(new) is None:
        return file
    return replace(file, source=new, target=new)


def _file(file: FileDiff, there: FileDiff, was: Read, now: Read) -> tuple[Changes, Left | None]:
    """(what becomes of the new tree's files, what cannot be moved)."""
    met, changes = judging.meet(there, now)
    current = now(there.source) if there.source else None
    if current is None or there.source != there.target or not there.hunks:
        if met.word in (*FITS, IN):
            return {path: data for path, data in changes.items() if now(path) != data}, None
        return {}, Left(met, there, there.raw)
    common = was(str(file.source))
    text, hunks = current, list[Hunk]()
    for hunk in there.hunks:
        one = _hunk(hunk, text, common)
        hunks += [hunk] if one is None else []
        text = text if one is None else one
    left = Left(_of(met, hunks, text), there, _raw(there, hunks)) if hunks else None
    return ({there.path: text} if text != current else {}), left


def _hunk(hunk: Hunk, text: bytes, common: bytes | None) -> bytes | None:
    """A text with the hunk in it, the text itself where it is in; None where it conflicts."""
    if common is not None:
        alone, theirs = judging.hunks_on(common, [replace(hunk, new=hunk.old)])  # the others are not there
        merged = merging.merge_file(text, common, theirs) if alone[0].word in FITS else None
        if merged is not None:
            return merged
    met, after = judging.hunks_on(text, [hunk])
    return after if met[0].word in FITS else text if met[0].word == IN else None


def _of(met: FileMet, left: list[Hunk], text: bytes) -> FileMet:
    """How the hunks that are left meet the text that the others made."""
    names = {hunk.number for hunk in left}
    told: list[HunkMet] = [hunk for hunk in met.hunks if hunk.number in names and hunk.word == CONFLICTS]
    known = {hunk.number for hunk in told}
    told += [one for hunk in left if hunk.number not in known for one in judging.hunks_on(text, [hunk])[0]]
    return met._replace(word=CONFLICTS, hunks=sorted(told))


def _raw(file: FileDiff, hunks: list[Hunk]) -> bytes:
    """The part of a patch that holds these hunks of a file."""
    rows = judging.lines(file.raw)
    starts = [hunk.line - file.line for hunk in file.hunks] + [len(rows)]
    ends = {hunk.number: end for hunk, end in zip(file.hunks, starts[1:], strict=True)}
    kept = [b"".join(rows[hunk.line - file.line : ends[hunk.number]]) for hunk in hunks]
    return b"".join(rows[: starts[0]]) + b"".join(kept)
