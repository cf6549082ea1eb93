"""Print a run's speed, losses, gradient norms and memory, from its metrics.jsonl alone: ``python -m model.report RUN``.

A run with a profile also has, from its profile.json, the distance to the limit of its GPUs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from model.records import history
from model.reports import limit
from model.reports.report import rows, summarise
from reproducers.base import cli
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="the run's directory")],
    warmup: Annotated[int, typer.Option(min=0, help="recorded steps left out of the medians")] = 10,
    profile: Annotated[bool, typer.Option("--profile", help="print a profiled run's page, as in profile.md")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print a run's speed, losses, gradient norms and memory and, of a profiled run, the distance to the limit."""
    if profile:
        print(limit.page(run), end="")
        return
    report = summarise(run, warmup)
    if as_json:
        print(json.dumps(json.loads(report.model_dump_json()) | limit.data(run), indent=2, ensure_ascii=False))
        return
    table = Table("quantity", "value", title=escape(f"{report.run}: {run / history.NAME}"))
    for row in rows(report):
        table.add_row(*row)
    cli.console(width=None if sys.stdout.isatty() else 120).print(table, *limit.shown(run))


if __name__ == "__main__":
    guarded(app)
