"""Check whether packs are ready for a maintainer: ``python -m reproducers.lint [PACK...]``. Exit 1 with faults, else 0.

It checks text, links, privacy, numbers, receipts, patches and the decision to file; ``--list`` names every rule.
A rule that cannot look (no tree in the store, no formatter) says so and counts as skipped, never as passed.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Annotated

import typer

from patchlane.base.clock import day_of, today

if TYPE_CHECKING:
    from reproducers.desk.rules.engine import Report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def lint(names: list[str], today: datetime.date) -> Report:
    """The report on the named packs, or on all; PatchlaneError for an unknown pack."""
    from reproducers.desk.rules.engine import examine
    from reproducers.record.schema import ROOT, load_named, load_packs
    from reproducers.upstream.store import Store

    chosen = load_named(names) if names else load_packs()
    return examine(chosen, ROOT / "receipts", Store(offline=True).root, today)


def _as_json(report: Report) -> str:
    return json.dumps({"schema_version": 1, **dataclasses.asdict(report)}, indent=1, ensure_ascii=False)


def _print(report: Report) -> None:
    from patchlane.base.wording import count

    for fault in report.faults:
        typer.echo(str(fault))
    for why in dict.fromkeys((s.rule, s.why) for s in report.skipped):
        packs = ", ".join(s.pack for s in report.skipped if (s.rule, s.why) == why)
        typer.echo(f"skipped: {why[0]}: {packs}: {why[1]}")
    counts = f"{count(len(report.faults), 'fault')}, {len(report.exempted)} exempted, {len(report.skipped)} skipped"
    typer.echo(f"{count(len(report.packs), 'pack')}: {counts}")


@app.command()
def main(
    packs: Annotated[list[str] | None, typer.Argument(metavar="PACK", help="packs, as pack05 (default: all)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
    listed: Annotated[bool, typer.Option("--list", help="print every rule and its meaning, and stop")] = False,
    date: Annotated[str | None, typer.Option(metavar="DAY", help="judge ages by this day (default: today)")] = None,
) -> None:
    """Check packs, their texts and patches against every rule."""
    from patchlane.base.exits import Exit
    from reproducers.desk.rules.engine import meanings

    if listed:
        width = max(map(len, meanings()))
        typer.echo("\n".join(f"{name:{width}}  {text}" for name, text in meanings().items()))
        return
    report = lint(packs or [], day_of(date) or today())
    typer.echo(_as_json(report)) if as_json else _print(report)
    raise typer.Exit(Exit.CONTRADICTED if report.faults else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
