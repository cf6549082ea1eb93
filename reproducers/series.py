"""Export patches that stack: ``python -m reproducers.series [PACK...]`` writes one folder an upstream tree.

Each holds the packs' patches for that release or SHA as ``git am`` takes them, with full headers, and a quilt
``series`` file. Before it writes anything it tries the order with ``git am`` on the pinned tree. It leaves out packs
that are held, not validated, or without a patch at the pin, and prints the reason for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproducers.desk.patches.series import listing, numbered_mails, planned, tried_on_tree, write

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
OUT = Path("build/series")


@app.command(help=__doc__)
def main(
    packs: Annotated[list[str] | None, typer.Argument(metavar="PACK", help="packs, as pack05 (default: all)")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="where the folders are written")] = OUT,
    pin: Annotated[str, typer.Option(metavar="PIN", help="the pins of this name in pack.yaml")] = "live",
) -> None:
    """Write the series of the named packs, or of all; PatchlaneError if a series cannot be made."""
    choice, entries = planned(packs or [], pin)
    ready = []
    for (distribution, version), members in choice.series.items():
        mails = numbered_mails(members, entries)
        ready.append((out / f"{distribution}-{version}", members, mails, tried_on_tree(members, mails)))
    for folder, members, mails, tried in ready:
        write(folder, {"series": listing(members, tried).encode(), **{name: data for _, name, data in mails}})
        typer.echo(f"{folder}")
        for member, name, _ in mails:
            typer.echo(f"  {name}  {member.pack.id}  {tried[name]}")
    for name, why in choice.left_out.items():
        typer.echo(f"{name} left out: {why}")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
