"""What became of a queue, for people: a table of patches and trees, and what stands in the way of each hunk."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from patchlane.base.wording import count, printable, short
from reproducers.carried.entry import Carried
from reproducers.carried.meeting.judging import (
    APPLIES,
    CANNOT,
    CONFLICTS,
    GONE,
    IN,
    NOT_THERE,
    OFFSET,
    PARTLY,
    FileMet,
    HunkMet,
)
from reproducers.carried.meeting.queues import FAILS, Row, plain
from reproducers.studies.versions import applying

COLOURS = {
    **{APPLIES: "green", OFFSET: "green", IN: "cyan", PARTLY: "cyan"},
    **{CONFLICTS: "red", GONE: "red", NOT_THERE: "yellow", CANNOT: "yellow", applying.CANNOT: "yellow"},
}


def plain_text(text: str) -> str:
    """Others' text as a terminal may show it."""
    return escape(printable(text))


def table(entries: list[Carried], rows: list[Row], out: Console) -> None:
    """One line a patch, one column a tree."""
    first = entries[0]
    title = f"{first.folder.parent.name}: of {first.upstream.repo}, made for {short(first.base)}"
    shown = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    columns = list(dict.fromkeys(row.tree for row in rows))
    for column in ("patch", "files", *columns):
        shown.add_column(short(column), overflow="fold")
    for entry in entries:
        met = {row.tree: row for row in rows if row.entry == entry.id}
        cells = [cell(met[column]) if column in met else "" for column in columns]
        shown.add_row(plain_text(entry.id), str(len(entry.diff.files)), *cells)
    out.print(shown, "", sep="\n")


def cell(row: Row) -> str:
    """An entry on a tree in a few words."""
    failing = [file for file in row.files if file.word in FAILS]
    some = f"{len(failing)} of {len(row.files)} files conflict" if failing and len(row.files) > 1 else ""
    text = some or ("applies, offset" if row.word == OFFSET else row.word)
    absent = sum(file.word == NOT_THERE for file in row.files)
    said = f", {absent} in no wheel" if absent and row.word != NOT_THERE else ""
    alone = f" (alone: {row.alone})" if row.alone and row.alone != row.word else ""
    return f"[{COLOURS[row.word]}]{text}[/]{said}{alone}"


def step(title: str, before: list[Row], rows: list[Row], out: Console) -> None:
    """A commit, and of each patch what is another than at the commit before; all of it at the first."""
    out.print(plain_text(title))
    known = {(row.entry, file.path): file.word for row in before for file in row.files}
    for row in rows:
        if not before:
            out.print(f"  {plain_text(row.entry)}  {cell(row)}")
        for file in row.files:
            was, word = plain(known.get((row.entry, file.path), file.word)), plain(file.word)
            if was != word:
                words = f"{was} -> [{COLOURS[word]}]{word}[/]"
                out.print(f"  {plain_text(row.entry)}  {plain_text(file.path)}: {words}")


def details(entry: Carried, row: Row, out: Console) -> None:
    """Each file and hunk that does not apply as it stands; nothing where all do."""
    alone = {file.path: file.word for file in row.alone_files}
    told = [file for file in row.files if file.word != APPLIES or file.path in alone]
    if row.why or told:
        out.print(f"{plain_text(entry.id)} on {short(row.tree)}: {plain_text(row.why or row.word)}")
    for file in told:
        beside = f" (alone: {alone[file.path]})" if file.path in alone else ""
        why = f": {file.why}" if file.why else ""
        out.print(f"  [{COLOURS[file.word]}]{file.word}[/]  {plain_text(file.path + beside + why)}")
        for hunk in file.hunks if file.word != IN else []:
            for text in _of_hunk(hunk):
                out.print(f"      {plain_text(text)}")


def _of_hunk(hunk: HunkMet) -> list[str]:
    name = f"hunk {hunk.number} (line {hunk.line})"
    if hunk.word == OFFSET:
        where = "below" if hunk.offset > 0 else "above"
        return [f"{name} applies {count(abs(hunk.offset), 'line')} {where}, at line {hunk.at}"]
    if hunk.word == IN:
        return [f"{name} is already in, at line {hunk.at}"]
    if hunk.word != CONFLICTS:
        return []
    if hunk.differs is None:
        return [f"{name} conflicts" + (f": {hunk.why}" if hunk.why else "")]
    by = [f"    by {hunk.by}"] if hunk.by else []
    return [
        f"{name} conflicts at line {hunk.differs.line}",
        f"    expected: {hunk.differs.expected}",
        f"    there:    {hunk.differs.there}",
        *by,
    ]


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    """The rows as JSON takes them, every file and hunk with its words."""
    return [
        {
            **row._asdict(),
            "files": [_file(file) for file in row.files],
            "alone_files": [_file(file) for file in row.alone_files],
        }
        for row in rows
    ]


def _file(file: FileMet) -> dict[str, object]:
    hunks = [{**hunk._asdict(), "differs": hunk.differs._asdict() if hunk.differs else None} for hunk in file.hunks]
    return {**file._asdict(), "hunks": hunks}
