"""A carried queue on a new base: what was moved, what is in upstream, and what a person has to do."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.wording import count, short
from reproducers.carried.entry import Carried
from reproducers.carried.meeting import history, queues, telling, trees
from reproducers.carried.meeting.judging import NOT_THERE
from reproducers.carried.meeting.queues import Row
from reproducers.carried.meeting.trees import Tree
from reproducers.carried.moving import Moved, move
from reproducers.carried.writing import series
from reproducers.desk.patches.series import write
from reproducers.studies.versions.applying import Asked


def onto(entries: list[Carried], name: str, asked: Asked, folder: Path, out: Console) -> bool:
    """Write the queue for a release, tag or SHA to folders below ``folder``; whether something is left for a person.

    PatchlaneError where the queue does not apply to its own base, CannotTestHere where a tree cannot be had.
    """
    paths, clone = trees.wanted(entries), asked.clone
    base = trees.base(entries, paths, clone, asked)
    target = trees.tree(entries[0].upstream, name, paths, clone, asked)
    renamed = _renamed(entries, base, target, clone)
    if renamed:
        target = trees.tree(entries[0].upstream, name, {*paths, *renamed.values()}, clone, asked)
    for row in queues.meet(entries, target):
        if absent := [file.path for file in row.files if file.word == NOT_THERE]:
            remedy = f"--upstream CLONE of {entries[0].upstream.repo}"
            raise CannotTestHere(f"{row.entry} changes {absent[0]}, which is in no wheel", remedy)
    for row in queues.meet(entries, base):
        if row.word in queues.FAILS:
            what = f"{row.entry} does not apply to its own base, {short(base.label)}: {row.word}"
            raise PatchlaneError(what, f"python -m reproducers.applies {entries[0].folder.parent}, then import it anew")
    moved = move(entries, base, target, renamed)
    files, left = series(moved, target)
    place = folder / f"{entries[0].folder.parent.name}-{short(target.label).replace('/', '_').replace(' ', '-')}"
    write(place, files)
    out.print(
        telling.plain_text(
            f"{place}  {count(len(files) - 1, 'patch').replace('patchs', 'patches')} for {short(target.label)}"
        )
    )
    if left:
        rest = place.with_name(f"{place.name}-left")
        write(rest, left)
        out.print(telling.plain_text(f"{rest}  what is left for a person"), style="yellow")
    for one in moved:
        _tell(one, target, base, clone, out)
    return bool(left)


def _renamed(entries: list[Carried], base: Tree, target: Tree, clone: Path | None) -> dict[str, str]:
    """{path at the base: at the target} of files that the clone's history says were renamed."""
    if clone is None or base.sha is None or target.sha is None:
        return {}
    gone = {
        str(file.source) for entry in entries for file in entry.diff.files if file.source in base.names - target.names
    }
    found = {path: history.moved(clone, base.sha, target.sha, path)[1] for path in sorted(gone)}
    return {path: new for path, new in found.items() if new in target.names}


def _tell(one: Moved, target: Tree, base: Tree, clone: Path | None, out: Console) -> None:
    whole = sum(len(file.hunks) for file in one.entry.diff.files)
    left = sum(len(rest.met.hunks or rest.file.hunks) for rest in one.left)
    said = f"{whole - left} of {count(whole, 'hunk')} hold there" + (f", {left} left" if left else "")
    if not (one.after or one.verbatim or one.left):
        said = "all of it is in upstream: left out"
    out.print(telling.plain_text(f"{one.entry.id}: {said}"))
    if one.left:
        met = [rest.met for rest in one.left]
        row = Row(one.entry.id, target.label, queues.word_of(met), met)
        files = [rest.file for rest in one.left]
        telling.details(one.entry, queues.explained(row, files, target, clone, base.sha), out)
