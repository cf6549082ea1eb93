"""Whether a pack may be filed today: ``python -m reproducers.preflight pack05 [--as comment]``.

Seven points, after all that keeps the pack from being filed at all: the reproducer passed today on a named host, the
text renders and lints clean, the reproducer is attached, nothing private leaves, the upstream's formatter was run, the
patch applies to the tree it is for, and a person approved exactly these files. Exit 0 only when all pass. It reads and
prints; a person files.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reproducers.base.clock import day_of, today

if TYPE_CHECKING:
    from reproducers.desk.gate.checklist import Checklist, Point

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _as_json(found: Checklist) -> str:
    from reproducers.desk.gate.checklist import next_step

    content = {
        "schema_version": 1,
        "pack": found.pack.id,
        "form": found.form,
        "date": str(found.day),
        "passed": not found.open,
        "blockers": [asdict(point) for point in found.blockers],
        "points": [asdict(point) for point in found.points],
        "next": next_step(found),
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def show(found: Checklist) -> None:
    """Print the table and the next step."""
    from rich.console import Console
    from rich.table import Column, Table

    from reproducers.desk.gate.checklist import next_step

    out = Console(highlight=False, markup=False)
    out.print(f"{found.pack.id} as {found.form} on {found.day}: {found.pack.title}", soft_wrap=True)
    table = Table("", "point", "result", Column("what", overflow="fold"), Column("remedy", overflow="fold"))
    for point in found.blockers:
        table.add_row("", *_cells(point))
    for number, point in enumerate(found.points, 1):
        table.add_row(str(number), *_cells(point))
    out.print(table)
    out.print(f"{'Open' if found.open else 'Ready'}. Next: {next_step(found)}", soft_wrap=True)


def _cells(point: Point) -> tuple[str, str, str, str]:
    return point.name, "a person's" if point.result == "person" else point.result, point.what, point.remedy


@app.command()
def main(
    pack: Annotated[str, typer.Argument(help="pack05, 05 or 5")],
    form: Annotated[str | None, typer.Option("--as", help="issue, pr or comment (default: as decided)")] = None,
    clone: Annotated[Path | None, typer.Option(metavar="DIR", help="a clone of the upstream: try its main too")] = None,
    date: Annotated[str | None, typer.Option(metavar="DAY", help="judge by this day, UTC (default: today)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the points as JSON")] = False,
) -> None:
    """Check all that has to be so before a person files the pack, and name the next step."""
    from reproducers.base.verdicts import Exit
    from reproducers.desk.gate.checklist import judge

    found = judge(pack, form, day_of(date) or today(), clone)
    typer.echo(_as_json(found)) if as_json else show(found)
    raise typer.Exit(Exit.CONTRADICTED if found.open else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
