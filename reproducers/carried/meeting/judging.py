"""How a patch meets files: hunk by hunk, by the rules of ``git apply``, and what stands in a hunk's way.

git says of a whole file that it applies or does not; a person who moves a patch has to know which hunk, where it
landed, and what the tree has in place of what it expects.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reproducers.carried.patches.diffs import LINKS, FileDiff, Hunk

APPLIES, OFFSET, IN, PARTLY = "applies", "offset", "already in", "partly in"
CONFLICTS, GONE, NOT_THERE, CANNOT = "conflicts", "file gone", "in no wheel", "cannot judge"
FITS = (APPLIES, OFFSET)
Read = Callable[[str], bytes | None]
Changes = dict[str, bytes | None]  # {path: its content, None where it is deleted}


class Differs(NamedTuple):
    """The first line that is not as a hunk expects: its number in the tree, what was expected, what is there."""

    line: int
    expected: str
    there: str


class HunkMet(NamedTuple):
    """A hunk on a file. ``word``: applies, offset, already in or conflicts.

    ``line`` is in the patch, ``at`` in the tree, both 1-based; ``offset`` is in lines, as git counts it. ``why``,
    ``differs`` and ``by``, upstream's commit that made the difference, are of a conflict.
    """

    number: int
    line: int
    word: str
    at: int | None = None
    offset: int = 0
    why: str = ""
    differs: Differs | None = None
    by: str = ""


class FileMet(NamedTuple):
    """A file of a patch on a tree; ``word`` is the worst of its hunks, and applies beside already in is partly in."""

    path: str
    word: str
    hunks: list[HunkMet]
    why: str = ""


def meet(file: FileDiff, read: Read) -> tuple[FileMet, Changes]:
    """How a file of a patch meets a tree, and what becomes of the tree's files by what of it applies.

    Both are shared by all who ask: to be read, never changed.
    """
    return _meet(file, read(file.source) if file.source else None, read(file.target) if file.target else None)


@functools.lru_cache(maxsize=1024)
def _meet(file: FileDiff, here: bytes | None, there: bytes | None) -> tuple[FileMet, Changes]:
    if LINKS & set(file.modes):
        return FileMet(file.path, CANNOT, [], "a link or a submodule"), {}
    if file.binary:
        return _binary(file, here, there), {}
    if file.source is None:
        return _added(file, there)
    if file.renamed and here is None and there is not None:
        back = _backwards(there, file.hunks)
        return FileMet(file.path, IN if all(one.word == IN for one in back) else CONFLICTS, back), {}
    if here is None:
        word = IN if file.target is None else GONE
        return FileMet(file.path, word, [], "" if word == IN else f"there is no {file.source}"), {}
    if (file.renamed or file.copied) and there is not None:
        return FileMet(file.path, CONFLICTS, [], f"{file.source} and {file.target} are both there"), {}
    met, after = hunks_on(here, file.hunks)
    if file.target is None:
        if all(one.word in FITS for one in met) and not after:
            return FileMet(file.path, _worst(met), met), {file.source: None}
        return FileMet(file.path, CONFLICTS, met, "it is not the file that the patch deletes"), {}
    changes: Changes = {file.target: after} | ({file.source: None} if file.renamed else {})
    return FileMet(file.path, _worst(met), met), changes


def _added(file: FileDiff, there: bytes | None) -> tuple[FileMet, Changes]:
    assert file.target is not None
    content = b"".join(text for hunk in file.hunks for text in hunk.after)
    if there is None:
        return FileMet(file.path, APPLIES, [HunkMet(h.number, h.line, APPLIES, 1) for h in file.hunks]), {
            file.target: content
        }
    if there == content:
        return FileMet(file.path, IN, [HunkMet(h.number, h.line, IN, 1) for h in file.hunks]), {}
    return FileMet(file.path, CONFLICTS, [], "the tree has a file of this name, with another content"), {}


def _binary(file: FileDiff, here: bytes | None, there: bytes | None) -> FileMet:
    """By git's SHAs of the whole file, which a binary patch states."""
    if file.blobs is None:
        return FileMet(file.path, CANNOT, [], "binary, and the patch states no SHA of it")
    before, after = ("" if not set(blob) - {"0"} else blob for blob in file.blobs)
    if _is_blob(there if file.target else here, after):
        return FileMet(file.path, IN, [])
    if _is_blob(here, before):
        return FileMet(file.path, APPLIES, [])
    return FileMet(
        file.path, GONE if here is None else CONFLICTS, [], "the tree has another version of this binary file"
    )


def _is_blob(data: bytes | None, sha: str) -> bool:
    if data is None or not sha:
        return data is None and not sha
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest().startswith(sha)


def hunks_on(content: bytes, hunks: Sequence[Hunk]) -> tuple[list[HunkMet], bytes]:
    """Each hunk on a file's content, and the content after those that apply; one that conflicts is left out."""
    image = [(line, False) for line in lines(content)]
    met, missing = list[HunkMet](), 0
    for hunk in hunks:
        expected = max(hunk.new - 1, 0) - missing
        at = _find(image, hunk.before, expected, hunk.old <= 1, not hunk.trailing)
        if at is not None:
            image[at : at + len(hunk.before)] = [(text, True) for text in hunk.after]
            offset = at - expected
            met.append(HunkMet(hunk.number, hunk.line, OFFSET if offset else APPLIES, at + 1, offset))
            continue
        at = _find(image, hunk.after, expected, hunk.new <= 1, not hunk.trailing)
        if at is not None:
            met.append(HunkMet(hunk.number, hunk.line, IN, at + 1))
            continue
        missing += len(hunk.after) - len(hunk.before)
        met.append(_conflict(hunk, [text for text, _ in image], expected))
    return met, b"".join(text for text, _ in image)


def _backwards(content: bytes, hunks: Sequence[Hunk]) -> list[HunkMet]:
    """Whether each hunk is in a content; others are conflicts."""
    image = [(line, False) for line in lines(content)]
    found = [_find(image, hunk.after, max(hunk.new - 1, 0), hunk.new <= 1, not hunk.trailing) for hunk in hunks]
    return [
        HunkMet(hunk.number, hunk.line, CONFLICTS if at is None else IN, None if at is None else at + 1)
        for hunk, at in zip(hunks, found, strict=True)
    ]


def lines(content: bytes) -> list[bytes]:
    """The lines of a file, as git has them: LF alone ends one, and the last may lack it."""
    rows = content.split(b"\n")
    return [row + b"\n" for row in rows[:-1]] + ([rows[-1]] if rows[-1] else [])


def _find(image: list[tuple[bytes, bool]], wanted: list[bytes], expected: int, begin: bool, end: bool) -> int | None:
    """Where the lines stand, nearest to what is expected: at the file's begin or end where git asks for that, and never
    over lines of an earlier hunk."""
    last = len(image) - len(wanted)
    if last < 0 or (begin and end and last):
        return None
    start = 0 if begin else last if end else max(0, min(expected, last))
    only = begin or end
    for at in [start] if only else sorted(range(last + 1), key=lambda at: (abs(at - start), at > start)):
        if all(image[at + row] == (text, False) for row, text in enumerate(wanted)):
            return at
    return None


def _conflict(hunk: Hunk, there: list[bytes], expected: int) -> HunkMet:
    """What stands in the hunk's way, at the place that is most like what it expects."""
    wanted = hunk.before
    for how, name in (
        (lambda text: text.rstrip(b"\r\n"), "the ends of lines are"),
        (lambda text: b"".join(text.split()), "white space is"),
    ):
        if wanted and _at(list(map(how, there)), list(map(how, wanted))) is not None:
            return HunkMet(hunk.number, hunk.line, CONFLICTS, why=f"only {name} another")
    best, score = 0, 0
    for at in range(1 - len(wanted), len(there)):
        same = sum(
            len(text.strip()) + 1
            for row, text in enumerate(wanted)
            if 0 <= at + row < len(there) and there[at + row] == text and text.strip()
        )
        if (same, -abs(at - expected)) > (score, -abs(best - expected)) and same:
            best, score = at, same
    if not score:
        return HunkMet(hunk.number, hunk.line, CONFLICTS, why="none of the lines that it expects is there")
    first = next(
        row for row, text in enumerate(wanted) if not 0 <= best + row < len(there) or there[best + row] != text
    )
    place = best + first
    found = _text(there[place]) if 0 <= place < len(there) else ""
    return HunkMet(
        hunk.number,
        hunk.line,
        CONFLICTS,
        max(best, 0) + 1,
        differs=Differs(max(place, 0) + 1, _text(wanted[first]), found),
    )


def _at(image: list[bytes], wanted: list[bytes]) -> int | None:
    return next((at for at in range(len(image) - len(wanted) + 1) if image[at : at + len(wanted)] == wanted), None)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _worst(met: Iterable[HunkMet]) -> str:
    return worst([one.word for one in met] or [APPLIES])


def worst(words: Iterable[str]) -> str:
    """The word of what has parts: the worst, or partly in where some apply and some are in."""
    found = set(words)
    for word in (CONFLICTS, GONE, NOT_THERE, CANNOT, PARTLY):
        if word in found:
            return word
    if IN in found:
        return PARTLY if found & set(FITS) else IN
    return OFFSET if OFFSET in found else APPLIES
