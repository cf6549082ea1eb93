"""The trees that somebody asks about a queue, and what is said of each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.wording import short
from reproducers.carried.entry import Carried
from reproducers.carried.meeting import history, queues, telling, trees
from reproducers.carried.meeting.queues import Row
from reproducers.carried.meeting.trees import Tree
from reproducers.studies.versions import applying, releases
from reproducers.studies.versions.applying import Asked


class Trees(NamedTuple):
    """``at`` is one tree, ``commits`` are names with commas between them or A..B, else the ``newest`` releases."""

    at: str | None = None
    commits: str | None = None
    newest: int = 6


def told(entries: list[Carried], wanted: Trees, asked: Asked, out: Console) -> list[dict[str, object]]:
    """Print how the queue meets its base and the trees that are asked for; returns the rows for JSON.

    CannotTestHere where none that is asked for could be had.
    """
    rows, last, why = list[Row](), None, list[str]()
    if wanted.commits and ".." in wanted.commits:
        assert asked.clone is not None
        for tree, met in queues.changes_between(entries, asked.clone, wanted.commits):
            telling.step(history.title(asked.clone, str(tree.sha)), rows[-len(met) :], met, out)
            rows, last = rows + met, tree
    else:
        paths = trees.wanted(entries)
        names = _names(entries, wanted, asked.clone)
        for name in names:
            try:
                last = trees.tree(entries[0].upstream, name, paths, asked.clone, asked)
            except PatchlaneError as error:
                why.append(f"{short(name)}: {error.what}" + (f"; {error.remedy}" if error.remedy else ""))
                rows += [Row(entry.id, name, applying.CANNOT, [], why=error.what) for entry in entries]
                continue
            rows += queues.meet(entries, last)
        if len(why) >= max(len(names) - 1, 1):  # the base alone is no answer
            raise CannotTestHere("\n".join(why), f"--upstream CLONE of {entries[0].upstream.repo}")
        telling.table(entries, rows, out)
    said = _explained(entries, rows, last, asked.clone)
    for row, entry in zip(said, entries, strict=True):
        telling.details(entry, row, out)
    for text in [*([short(f"{last.label}: {last.said}")] if last and last.said else []), *why]:
        out.print(telling.plain_text(text), style="yellow")
    better = {(row.entry, row.tree): row for row in said}
    return telling.as_json([better.get((row.entry, row.tree), row) for row in rows])


def _names(entries: list[Carried], wanted: Trees, clone: Path | None) -> list[str]:
    """The base first, so that a queue that does not apply to its own is seen, then what is asked for."""
    base = trees.base_name(entries[0].base, clone)
    if wanted.commits:
        names = [name.strip() for name in wanted.commits.split(",") if name.strip()]
    elif wanted.at:
        names = [wanted.at]
    elif clone is not None:
        names = ["HEAD"]
    else:
        names = releases.choose(entries[0].upstream.distribution, newest=wanted.newest, loadable=False).taken
    return list(dict.fromkeys([base, *names]))


def _explained(entries: list[Carried], rows: list[Row], tree: Tree | None, clone: Path | None) -> list[Row]:
    """The rows of the last tree that was had, with what stands in the way of each hunk."""
    if tree is None:
        return []
    stated = entries[0].base
    name = trees.base_name(stated, clone)
    base = trees.commit(clone, name) if clone else None
    of_last = zip([row for row in rows if row.tree == tree.label], entries, strict=True)
    return [queues.explained(row, entry.diff.files, tree, clone, base) for row, entry in of_last]
