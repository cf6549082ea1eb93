"""Say whether each patch applies to the newest releases of its upstream, is in them, or conflicts.

No arm runs. A patch applies when git takes it with neither fuzz nor offset, or, as ``patch -F0`` takes it, with an
offset; it is already in when its reverse applies. Of a pack with several patches the best answer counts.
``python -m reproducers.applies pack09``
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich.markup import escape

from reproducers.record.schema import load_named, load_packs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="pack05, 05 or 5 (default: all)")] = None,
    newest: Annotated[int, typer.Option(min=1, help="how many releases of each upstream")] = 6,
    offline: Annotated[bool, typer.Option(help="do not ask the index")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the rows as JSON on stdout")] = False,
) -> None:
    """Print a table an upstream and what the newest release speaks for; exit 77 where no release could be had."""
    chosen = load_named(packs) if packs else load_packs()
    if offline:
        os.environ["PATCHLANE_OFFLINE"] = "1"
    from reproducers.studies.versions import applying
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    out = screen.console(as_json)
    rows = applying.newest(chosen, newest, Store(progress=screen.Announcer(out)))
    proposed = applying.proposals(chosen, rows)
    applying.table(chosen, rows, out)
    for text in proposed:
        out.print(escape(f"proposed: {text}"))
    if as_json:
        typer.echo(json.dumps({"rows": [row._asdict() for row in rows], "proposed": proposed}, indent=1))


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
