"""Look for bugs that nobody reported: ``python -m reproducers.hunt liger-kernel`` fuzzes a release's functions.

Each function of the upstream's targets gets drawn inputs, and is compared with eager torch in fp64 and with itself.
What fails is confirmed, shrunk, kept in a corpus and written as a pack folder to be completed; docs/hunt.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    distribution: Annotated[str, typer.Argument(help="liger-kernel, mamba-ssm, megatron-core or transformer-engine")],
    minutes: Annotated[float, typer.Option(min=0.05, help="how long")] = 10.0,
    release: Annotated[str | None, typer.Option(help="default: the newest that packs/releases.yaml lists")] = None,
    seed: Annotated[int, typer.Option(min=0, help="the same seed draws the same cases")] = 0,
    only: Annotated[str | None, typer.Option(metavar="FUNCTION", help="one target, by its name")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes (default: the cores)")] = None,
    corpus: Annotated[Path | None, typer.Option(help="where alarms are kept (default: in the store)")] = None,
    out: Annotated[Path, typer.Option(help="where pack folders are written")] = Path("build/hunt"),
    lane: Annotated[str, typer.Option(help="cpu")] = "cpu",
) -> None:
    """Exit 1 where there is an alarm, 77 where nothing could be tried."""
    if lane != "cpu":
        raise PatchlaneError(f"--lane {lane}: a hunt is on the cpu lane", "--lane cpu")
    from patchlane.base import disk
    from reproducers.host import cores
    from reproducers.studies.hunt import corpus as kept
    from reproducers.studies.hunt import filing, session
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    disk.usable_folder(out, "--out DIR names another folder")
    console = screen.console(False)
    store = Store(progress=screen.Announcer(console))
    request = session.Request(distribution, minutes, release, seed, only, jobs or cores.usable())
    run = session.Session(
        request, store, corpus or store.root / kept.FOLDER, lambda line: console.print(escape(line), highlight=False)
    )
    console.print(f"{distribution} {run.found.release}, seed {seed}, {minutes:g} minutes", highlight=False)
    found = run.run()
    session.require_known(request, found)
    for line in session.told(found):
        console.print(escape(line), highlight=False)
    for line in dict.fromkeys(filing.write(alarm, run.of, run.tree.path, out) for alarm in found.alarms):
        console.print(escape(line), highlight=False)
    if found.interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(Exit.CONTRADICTED if found.alarms else Exit.OK if found.compared else Exit.CANNOT_TEST)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
