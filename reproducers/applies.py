"""Say whether each patch applies to the newest releases of its upstream, is in them, or conflicts.

No arm runs. A patch applies when git takes it with neither fuzz nor offset, or, as ``patch -F0`` takes it, with an
offset; it is already in when its reverse applies. Of a pack with several patches the best answer counts. Of a large
wheel only the files that patches touch are fetched. ``python -m reproducers.applies pack09``

A folder of ``patchlane import`` is told by file and hunk, each patch alone and on top of those before it, and with
``--upstream CLONE`` by upstream's commit that is in the way. ``--commits A..B`` tells each commit where that changes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import load_named, load_packs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    packs: Annotated[
        list[str] | None, typer.Argument(help="pack05, 05 or 5 (default: all), or one carried queue")
    ] = None,
    newest: Annotated[int, typer.Option(min=1, help="how many releases of each upstream")] = 6,
    at: Annotated[str | None, typer.Option(help="this tree alone: a pin, release, tag or SHA, as run has it")] = None,
    commits: Annotated[
        str | None, typer.Option(help="commits or tags of --upstream, comma between them, or A..B")
    ] = None,
    upstream: Annotated[Path | None, typer.Option(help="a clone that has them; alone: the folder as it is")] = None,
    download: Annotated[bool, typer.Option(help="fetch large files whole, and compare their digests")] = False,
    offline: Annotated[bool, typer.Option(help="do not ask the index")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the rows as JSON on stdout")] = False,
) -> None:
    """Print a table an upstream and what the newest release speaks for; exit 77 where no release could be had."""
    if commits and upstream is None:
        raise PatchlaneError("--commits are of a clone", "applies pack05 --commits SHA --upstream CLONE")
    if offline:
        os.environ["PATCHLANE_OFFLINE"] = "1"
    from reproducers.carried import entry
    from reproducers.carried.meeting import asking
    from reproducers.studies.versions import applying
    from reproducers.studies.versions.commits import named
    from reproducers.trial import screen
    from reproducers.upstream import pins
    from reproducers.upstream.store import Store

    out = screen.console(as_json)
    asked = applying.Asked(Store(progress=screen.Announcer(out)), upstream, download)
    if packs and any(map(entry.is_queue, packs)):
        if len(packs) > 1:
            raise PatchlaneError("a carried queue stands alone: it is applied in its own order", f"applies {packs[0]}")
        told = asking.told(entry.load(packs[0]), asking.Trees(at, commits, newest), asked, out)
        if as_json:
            typer.echo(json.dumps({"rows": told}, indent=1))
        return
    chosen = load_named(packs) if packs else load_packs()
    if upstream and len({pack.upstream.repo for pack in chosen}) > 1:
        raise PatchlaneError("--upstream is a clone of one upstream, the packs are of several", "name packs of one")
    if commits and upstream:
        clone = upstream
        rows = applying.named(chosen, lambda pack: named(pack, clone, commits.split(",")), asked)
    elif at or upstream:
        rows = applying.named(chosen, lambda pack: [pins.settle(pack, at or pins.UPSTREAM, upstream)], asked)
    else:
        rows = applying.newest(chosen, newest, asked)
    proposed = applying.proposals(chosen, rows)
    applying.table(chosen, rows, out)
    for text in proposed:
        out.print(escape(f"proposed: {text}"))
    if as_json:
        typer.echo(json.dumps({"rows": [row._asdict() for row in rows], "proposed": proposed}, indent=1))


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
