"""Find the release or commit that brought or mended a pack's bug. ``python -m reproducers.bisect pack05 --for fixed``.

Both ends are verified first, what cannot be tested is straddled and named, and both sides of the boundary run three
times. It ends in a block of Markdown to paste. For ``git bisect run`` there is ``python -m reproducers.run --bisect``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from reproducers.record import choice
from reproducers.record.goal import Goal

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    pack: Annotated[str, typer.Argument(help="pack05, 05 or 5")],
    goal: Annotated[Goal, typer.Option("--for", help="introduced: when did it come; fixed: when did it go")],
    clone: Annotated[Path | None, typer.Option("--git", help="over the commits of this clone, not releases")] = None,
    good: Annotated[str | None, typer.Option(help="a pin, release, tag or SHA without the bug")] = None,
    bad: Annotated[str | None, typer.Option(help="one with the bug (default: the live pin)")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="how often each side of the boundary runs")] = 3,
    build: Annotated[
        str | None,
        typer.Option(help="build each commit by this command, run in a copy of its tree, to which it may add"),
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="follow one bug check alone, by its name, or those of a shell pattern")
    ] = None,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use, for the lane's timeout_s")
    ] = None,
    again: Annotated[bool, typer.Option(help="run even where a receipt has the answer")] = False,
    host: Annotated[str, typer.Option(envvar="PATCHLANE_HOST", help="this host's alias")] = "local",
    receipts: Annotated[Path, typer.Option(help="where receipts go, and are looked for")] = Path("build/receipts"),
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="show all that the arms print")] = False,
) -> None:
    """Exit 1 when the boundary answers otherwise the next time, 2 when an end is the wrong one, 77 when untestable."""
    if build and clone is None:
        raise PatchlaneError("--build builds commits, and releases are searched", "--git CLONE")
    (chosen,) = choice.chosen([pack], False, lane, "pristine")
    from patchlane.base import disk
    from reproducers.base import cli
    from reproducers.evidence import saving, shelf
    from reproducers.host import cores
    from reproducers.studies.versions import asking, bisecting, block, ends, sweeping
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    disk.usable_folder(receipts, "--receipts DIR names another folder")
    out = screen.console(as_json=True)  # people's lines go to stderr: the block alone is on stdout
    recorder = saving.Recorder(receipts, host, [])
    cli.leaves(lambda: (f"{recorder.left()}; the next time they are not run again", []))
    asker = asking.Asker(
        chosen,
        lane,
        Store(progress=screen.Announcer(out)),
        recorder,
        [shelf.COMMITTED, receipts],
        clone,
        again,
        timeout,
        cores.threads(1),
        lambda answer: sweeping.line(answer, out),
        lambda arm, text: out.print(escape(f"[{arm}] {text}")) if verbose else sweeping.ended(text, out),
        begin=lambda tree, repeats: sweeping.begun(tree, repeats, out),
        build=build,
        check=check,
    )
    history, old, new = ends.of(chosen, goal, good, bad, clone)
    boundary = bisecting.search(asker, history, goal, old, new, repeats)
    typer.echo(block.markdown(asker, boundary, sys.argv[1:]))
    raise typer.Exit(Exit.OK if recorder.tell(out) else Exit.USAGE)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
