"""Export patches that stack: ``python -m reproducers.series [PACK...]`` writes one folder an upstream tree.

Each holds the packs' patches for that release or SHA as ``git am`` takes them, with full headers, and a quilt
``series`` file. Before it writes a folder it tries the order with ``git am`` on the pinned tree. It leaves out packs
that are held, not validated, or without a patch at the pin, and prints the reason for each.

A folder of ``patchlane import`` with ``--onto RELEASE|SHA`` is moved there, three-way by the files of its own base, and
what of it is in upstream is left out. What conflicts is told by file and hunk, and lies in a second folder, ``-left``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError
from reproducers.desk.patches.series import listing, numbered_mails, planned, tried_on_tree, write

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
OUT = Path("build/series")


@app.command(help=__doc__)
def main(
    packs: Annotated[list[str] | None, typer.Argument(metavar="PACK", help="packs, as pack05 (default: all)")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="where the folders are written")] = OUT,
    pin: Annotated[str, typer.Option(metavar="PIN", help="the pins of this name in pack.yaml")] = "live",
    onto: Annotated[str | None, typer.Option(help="the new base of a carried queue: a release, tag or SHA")] = None,
    upstream: Annotated[Path | None, typer.Option(help="a clone that has both bases of a carried queue")] = None,
) -> None:
    """Exit 1 if something of a carried queue is left for a person, 2 if a named pack cannot be in a series or a series
    cannot be made, else 77 if this host cannot try one."""
    from reproducers.carried import entry

    if onto is not None or any(map(entry.is_queue, packs or [])):
        if onto is None or len(packs or []) != 1:
            raise PatchlaneError("one carried queue is moved to one new base", "series carried/QUEUE --onto RELEASE")
        raise typer.Exit(_moved((packs or [])[0], onto, upstream, out))
    choice, entries = planned(packs or [], pin)
    failed, written = list(choice.refused.values()), 0
    for (distribution, version), members in choice.series.items():
        folder = out / f"{distribution}-{version}"
        try:
            mails = numbered_mails(members, entries)
            tried = tried_on_tree(members, mails)
        except PatchlaneError as error:
            failed.append(error)
            continue
        how, written = listing(members, tried), written + 1
        write(folder, {"series": how.encode(), **{name: data for _, name, data in mails}})
        typer.echo(f"{folder}  {how.splitlines()[0]}")
        for member, name, _ in mails:
            typer.echo(f"  {name}  {member.pack.id}  {tried[name]}")
    for name, why in choice.left_out.items():
        typer.echo(f"{name} left out: {why}")
    if failed and not written:
        raise failed[0]
    for reason in failed:
        typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(min((int(reason.exit_code) for reason in failed), default=0))


def _moved(queue: str, onto: str, clone: Path | None, out: Path) -> int:
    """Move a carried queue; the exit code."""
    from patchlane.base.exits import Exit
    from reproducers.carried import entry, rebasing
    from reproducers.studies.versions.applying import Asked
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    console = screen.console(False)
    asked = Asked(Store(progress=screen.Announcer(console)), clone)
    left = rebasing.onto(entry.load(queue), onto, asked, out, console)
    return int(Exit.CONTRADICTED if left else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
