"""The doctor's command line prints a screenful, with ``-v`` every row, with ``--json`` every fact."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from patchlane.base.wording import count
from reproducers.base import cli
from reproducers.host.readiness import examine, exit_code
from reproducers.record.schema import load_each, refuse

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def brief(report: dict[str, Any], out: Console) -> None:
    """Print what can run, what this fetches, and each missing thing once with the lanes that need it."""
    host = report["host"]
    gpus = "; ".join(" ".join(gpu.values()) for gpu in host["gpus"]) or "no GPU"
    memory = f"{host['memory_available_gib']} of {host['memory_gib']} GiB free"
    out.print(escape(f"python {host['python']}, {host['platform']}, {count(host['cores'], 'core')}, {memory}, {gpus}"))
    out.print(escape("  ".join(f"{name} {number}" for name, number in host["versions"].items() if name != "python")))
    out.print(escape(f"store {host['store']}; package index {host['index']}"))
    for lane in ("cpu", "cuda"):
        out.print(_lane(report, lane))
    for check in report["checks"]:
        if not check["ok"]:
            row = f"{check['name']}: {check['found']}, wanted {check['wanted']}"
            out.print(f"[red]{escape(row)}[/]\n    {escape(check['remedy'])}")
    for row, remedy in _missing(report):
        out.print(f"[red]{escape(row)}[/]\n    {escape(remedy)}")


def _lane(report: dict[str, Any], lane: str) -> str:
    """``cpu: 19 of 19 lanes can run; the first runs fetch 42 files``."""
    rows = [row for row in report["lanes"] if row["lane"] == lane and not row["absent"]]
    able = [row for row in rows if row["can_run"]]
    if lane == "cuda" and not report["host"]["gpus"]:
        return f"{lane}: {count(len(rows), 'lane')}: no GPU here"
    colour = "green" if len(able) == len(rows) else "yellow" if able else "red"
    return f"[{colour}]{lane}: {len(able)} of {count(len(rows), 'lane')} can run{_fetching(able, report['sizes'])}[/]"


def _fetching(rows: list[dict[str, Any]], sizes: dict[str, int]) -> str:
    """How many files and commits the lanes fetch, with the files' size if the index stated it for every file."""
    items = {
        (item["source"], item["filename"] or item["what"], bool(item["filename"]))
        for r in rows
        for item in r["fetches"]
    }
    files = {name for _, name, is_file in items if is_file}
    parts = [count(len(files), "file")] if files else []
    if files and files <= set(sizes):
        parts[0] += f" ({sum(sizes[name] for name in files) / 1e6:,.0f} MB)"
    commits = sum(not is_file for *_, is_file in items)
    parts += [count(commits, "commit")] if commits else []
    return f"; the first runs fetch {' and '.join(parts)}" if parts else ""


def _missing(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(what is missing and for which lanes, the remedy) once for each remedy; on a host without a GPU for cpu only."""
    groups: dict[str, dict[str, list[str]]] = {}
    printed = tuple(f"{check['name']}: {check['found']}" for check in report["checks"] if not check["ok"])
    for row in report["lanes"]:
        if row["lane"] == "cuda" and not report["host"]["gpus"]:
            continue
        for item in row["missing"]:
            if not item["what"].startswith(printed):
                lanes = groups.setdefault(item["remedy"], {}).setdefault(item["what"], [])
                lanes.append(f"{row['lane']} {row['pack'].removeprefix('pack')}")
    rows = []
    for remedy, things in groups.items():
        first, *others = things
        more = f" and {len(others)} more" if others else ""
        rows.append((f"{first}{more}, for {_named({lane for named in things.values() for lane in named})}", remedy))
    return rows


def _named(lanes: set[str]) -> str:
    """``cpu 01 02; cuda 34``."""
    split = [lane.split() for lane in sorted(lanes)]
    return "; ".join(f"{word} {' '.join(pack for lane, pack in split if lane == word)}" for word in dict(split))


def show(report: dict[str, Any], out: Console) -> None:
    """Print every fact as tables."""
    host = dict(report["host"])
    host["gpus"] = "; ".join(" ".join(gpu.values()) for gpu in host["gpus"]) or "none"
    host["versions"] = " ".join(f"{name} {number}" for name, number in host["versions"].items())
    for name, value in host.items():
        out.print(f"[bold]{name:21}[/]{escape(str(value))}")
    out.print("\n[bold]host[/]")
    for check in report["checks"]:
        row = f"{check['name']:21}{check['found']}" + (f", wanted {check['wanted']}" if check["wanted"] else "")
        out.print(escape(row))
        _get(out, "" if check["ok"] else check["remedy"])
    out.print("\n[bold]packs[/]")
    for row in report["lanes"]:
        word = "[green]can run[/]" if row["can_run"] else "[dim]no lane[/]" if row["absent"] else "[red]cannot[/]"
        fetched = f"fetches {', '.join(item['what'] for item in row['fetches'])}" if row["fetches"] else row["absent"]
        for item in row["missing"] or [{"what": fetched, "remedy": ""}]:
            out.print(f"{row['pack']} {row['lane']:5} {word}  {escape(item['what'])}".rstrip())
            _get(out, item["remedy"])


def _get(out: Console, remedy: str) -> None:
    """The command that gets what is missing, on a line of its own: no width breaks it."""
    if remedy:
        out.print(escape(f"    get it by: {remedy}"))


@app.command()
def main(
    as_json: Annotated[bool, typer.Option("--json", help="the same facts as JSON on stdout")] = False,
    online: Annotated[
        bool, typer.Option("--online", help="ask whether the package index answers, and how much is to fetch")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="a row for every pack and lane")] = False,
) -> None:
    """Print what this host can run. Exit 0 if every pack's cpu lane can run here, fetching what it needs, else 77."""
    packs, faults = load_each()
    report = examine(packs, online)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        (show if verbose else brief)(report, cli.console(highlight=False, soft_wrap=True))
    refuse(faults)
    raise typer.Exit(exit_code(report))
