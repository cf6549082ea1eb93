"""The doctor's command line and its tables; the JSON output has the same facts."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reproducers.readiness import examine, exit_code
from reproducers.schema import load_packs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def show(found: dict[str, Any], out: Console) -> None:
    """The same facts as tables."""
    host = dict(found["host"])
    host["gpus"] = "; ".join(" ".join(gpu.values()) for gpu in host["gpus"]) or "none"
    host["versions"] = " ".join(f"{name} {number}" for name, number in host["versions"].items())
    for name, value in host.items():
        out.print(f"[bold]{name:21}[/]{escape(str(value))}")
    tables = [
        _table("host", "what", "found", "wanted", "get it by"),
        _table("packs", "pack", "lane", "", "missing", "get it by"),
    ]
    for check in found["checks"]:
        remedy = "" if check["ok"] else check["remedy"]
        tables[0].add_row(check["name"], *map(escape, (check["found"], check["wanted"], remedy)))
    for row in found["lanes"]:
        word = "[green]can run[/]" if row["can_run"] else "[dim]no lane[/]" if row["absent"] else "[red]cannot[/]"
        missing = row["missing"] or [{"what": row["absent"], "remedy": ""}]
        for number, item in enumerate(missing):
            first = ("", "", "") if number else (row["pack"], row["lane"], word)
            tables[1].add_row(*first, escape(item["what"]), escape(item["remedy"]))
    for table in tables:
        out.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@app.command()
def main(
    as_json: Annotated[bool, typer.Option("--json", help="the same facts as JSON on stdout")] = False,
    online: Annotated[bool, typer.Option("--online", help="ask whether the package index answers")] = False,
) -> None:
    """Say what this host can run; exit 0 when every pack's cpu lane can, 77 otherwise."""
    found = examine(load_packs(), online)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        show(found, Console(highlight=False))
    raise typer.Exit(exit_code(found))
