"""Begin a new pack and fill in its files as far as the values are known.

``python -m reproducers.new SLUG --upstream OWNER/NAME --release X`` fills in number, pins with the package index's
digests, and headers; ``python -m reproducers.lint`` lists the parts that a person has to write. It does not ask the
index for a release that another pack pins. ``--from-carried ENTRY`` begins with a patch of ``patchlane import``, whose
repository, and release if it has one, need not be named.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError

FORMATTED = "reproducers/desk/rules/patch/formatters.py"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    slug: Annotated[str, typer.Argument(help="the bug in a few words of a to z and 0 to 9, joined by _")],
    upstream: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="the repository on GitHub")] = None,
    release: Annotated[str | None, typer.Option(help="the release with the bug, as the package index has it")] = None,
    distribution: Annotated[str | None, typer.Option(help="its name on the index (default: the repository's)")] = None,
    package: Annotated[str | None, typer.Option(help="its name for import (default: the distribution's)")] = None,
    kind: Annotated[str, typer.Option(help="bug, memory, refactor, or without a fix: report, guard")] = "bug",
    fixed: Annotated[str | None, typer.Option(help="the first release without the bug; a guard needs it")] = None,
    number: Annotated[int | None, typer.Option(min=1, max=999, help="default: the next free one")] = None,
    from_carried: Annotated[
        Path | None, typer.Option(metavar="ENTRY", help="a carried entry: its patch begins fix.patch")
    ] = None,
    offline: Annotated[bool, typer.Option(help="do not ask the package index")] = False,
) -> None:
    """Write the files of a new pack."""
    from patchlane.base.clock import today
    from reproducers.desk.rules.patch.formatters import FORMATTERS
    from reproducers.desk.start import known
    from reproducers.desk.start.skeleton import PAGE, Wanted, create
    from reproducers.record.schema import ROOT, load_named

    if offline:
        os.environ["PATCHLANE_OFFLINE"] = "1"
    theirs = None
    if from_carried is not None:
        from reproducers.carried import entry, growing

        carried, *more = entry.load(str(from_carried))
        if more:
            raise PatchlaneError(f"{from_carried} has several patches", f"--from-carried {carried.folder}")
        theirs, upstream, release = (
            growing.theirs(carried),
            upstream or carried.upstream.repo,
            release or carried.base.release,
        )
        distribution = distribution or carried.upstream.distribution
    if not upstream or not release:
        raise PatchlaneError("a pack is of a release of a repository", "--upstream OWNER/NAME --release X")
    wanted = Wanted(slug, upstream, release, number, distribution, package, kind, fixed, theirs)
    files = create(wanted, ROOT / "packs", today())
    for path in files:
        typer.echo(path.relative_to(ROOT))
    name = f"pack{files[0].relative_to(ROOT / 'packs').parts[0].partition('_')[0]}"
    (pack,) = load_named([name], ROOT / "packs")
    if pack.pins["live"].sha is None:
        typer.echo(f"its SHA is not known here: {known.asking(upstream, release)}")
    if pack.upstream.repo not in FORMATTERS:
        typer.echo(f"no formatter of {pack.upstream.repo} is known: add it to {FORMATTED}, or lint cannot compare")
    typer.echo(f"next: {PAGE}; python -m reproducers.lint {name} lists the parts to write")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
