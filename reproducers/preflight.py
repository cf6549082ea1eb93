"""Say whether a pack may be filed today: ``python -m reproducers.preflight pack05 [--as comment]``.

First come the reasons why the pack may not be filed at all, then eight points: the reproducer passed today on a host
with an alias, the text renders and lint finds no fault, the reproducer is attached, no file has a private word, the
upstream's formatter was run, the patch applies to its tree, upstream's newest release still has the bug, and a person
approved exactly these files. It exits 0 only if all pass. It reads and prints; a person files.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchlane.base.clock import day_of, today

if TYPE_CHECKING:
    from reproducers.desk.gate.checklist import Checklist

NEWLINE = "\n"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _as_json(checklist: Checklist) -> str:
    from reproducers.desk.gate.checklist import next_step

    content = {
        "schema_version": 1,
        "pack": checklist.pack.id,
        "form": checklist.form,
        "date": str(checklist.day),
        "passed": not checklist.open,
        "blockers": [asdict(point) for point in checklist.blockers],
        "points": [asdict(point) for point in checklist.points],
        "next": next_step(checklist),
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def show(checklist: Checklist) -> None:
    """Print each point with its remedy below, which can be copied at any width, and the next step."""
    from reproducers.desk.gate.checklist import next_step

    typer.echo(f"{checklist.pack.id} as {checklist.form} on {checklist.day}: {checklist.pack.title}")
    numbered = [("-", point) for point in checklist.blockers]
    numbered += [(str(number), point) for number, point in enumerate(checklist.points, 1)]
    for mark, point in numbered:
        result = "a person's" if point.result == "person" else point.result
        typer.echo(f"{mark} {result:12}{point.name}: {point.what.replace(NEWLINE, NEWLINE + '    ')}")
        if point.remedy:
            typer.echo(f"    fix: {point.remedy}")
    typer.echo(f"{'Open' if checklist.open else 'Ready'}. Next: {next_step(checklist)}")


@app.command()
def main(
    pack: Annotated[str, typer.Argument(help="pack05, 05 or 5")],
    form: Annotated[str | None, typer.Option("--as", help="issue, pr or comment (default: as decided)")] = None,
    clone: Annotated[Path | None, typer.Option(metavar="DIR", help="a clone of the upstream: try its main too")] = None,
    date: Annotated[str | None, typer.Option(metavar="DAY", help="judge by this day, UTC (default: today)")] = None,
    newest: Annotated[
        str | None, typer.Option(help="upstream's newest release, as applies lists it (default: the newest known here)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the points as JSON")] = False,
) -> None:
    """Check everything that must hold before a person files the pack, and name the next step."""
    from patchlane.base.exits import Exit
    from reproducers.desk.gate.checklist import judge

    checklist = judge(pack, form, day_of(date) or today(), clone, newest)
    typer.echo(_as_json(checklist)) if as_json else show(checklist)
    raise typer.Exit(Exit.CONTRADICTED if checklist.open else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
