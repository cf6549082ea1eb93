"""Say which releases of a pack's upstream have its bug: ``python -m reproducers.sweep pack09`` runs each as it is.

Each release has the needs that its own metadata asks for. The answer is bug, healthy, code not there or cannot test;
the closing lines give the affected range, and propose what pack.yaml should say. A release of which a receipt of this
reproducer exists is not run again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from reproducers.record import choice

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="pack05, 05 or 5")] = None,
    run_all: Annotated[bool, typer.Option("--all", help="every pack that has the lane")] = False,
    releases: Annotated[
        str | None, typer.Option(help="0.6.4,0.7.0 or '>=0.6,<0.9' (default: all but pre-releases and withdrawn ones)")
    ] = None,
    newest: Annotated[int | None, typer.Option(min=1, help="no more than so many releases, the newest")] = None,
    commits: Annotated[str | None, typer.Option(help="commits or tags of --upstream, comma between them")] = None,
    upstream: Annotated[Path | None, typer.Option(help="a clone that has the commits")] = None,
    build: Annotated[str | None, typer.Option(help="build each commit by this command; see bisect --help")] = None,
    check: Annotated[str | None, typer.Option(help="the answer is this bug check's alone; see bisect --help")] = None,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use, for the lane's timeout_s")
    ] = None,
    again: Annotated[bool, typer.Option(help="run even where a receipt has the answer")] = False,
    host: Annotated[str, typer.Option(envvar="PATCHLANE_HOST", help="this host's alias")] = "local",
    receipts: Annotated[Path, typer.Option(help="where receipts go, and are looked for")] = Path("build/receipts"),
    as_json: Annotated[bool, typer.Option("--json", help="answers as JSON on stdout")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="show all that the arms print")] = False,
) -> None:
    """Exit 1 when an answer contradicts a pin of a pack, 77 when nothing could be tested."""
    chosen = choice.chosen(packs or [], run_all, lane, "pristine")
    if commits and (upstream is None or len(chosen) > 1 or run_all):
        raise PatchlaneError("--commits are of one pack and a clone", "sweep pack05 --commits SHA --upstream CLONE")
    if build and not commits:
        raise PatchlaneError("--build builds commits", "--commits SHA --upstream CLONE")
    from patchlane.base import disk
    from reproducers.base import cli
    from reproducers.evidence import saving, shelf
    from reproducers.host import cores
    from reproducers.studies.versions import asking, sweeping
    from reproducers.studies.versions import releases as published
    from reproducers.studies.versions.answers import affected, listed
    from reproducers.studies.versions.commits import named
    from reproducers.trial import screen
    from reproducers.upstream.store import Store

    disk.usable_folder(receipts, "--receipts DIR names another folder")
    out = screen.console(as_json)
    recorder = saving.Recorder(receipts, host, [])
    cli.leaves(lambda: (f"{recorder.left()}; the next time they are not run again", []))
    store, rows, codes = Store(progress=screen.Announcer(out)), list[dict[str, Any]](), list[Exit]()
    for pack in chosen:
        trees = named(pack, upstream, commits.split(",")) if commits and upstream else []
        if releases or newest or not trees:
            taken, left = published.choose(pack.upstream.distribution, releases, newest)
            trees = [*taken, *trees]
            out.print(f"{pack.id}: {len(trees)} trees; left out: {len(left)}", highlight=False)
            for reason in sorted(set(left.values())):
                out.print(f"[dim]  {reason}: {escape(listed([name for name in left if left[name] == reason]))}[/]")
        asker = asking.Asker(
            pack,
            lane,
            store,
            recorder,
            [shelf.COMMITTED, receipts],
            upstream,
            again,
            timeout,
            cores.threads(1),
            lambda answer: sweeping.line(answer, out),
            (lambda arm, text: out.print(escape(f"[{arm}] {text}"))) if verbose else (lambda arm, text: None),
            build=build,
            check=check,
        )
        answers = [asker.ask(tree) for tree in trees]
        # pack.yaml claims something of all checks together, not of one
        contradicted = [] if check else sweeping.contradictions(pack, lane, answers)
        proposed = [] if check else sweeping.proposals(pack, answers)
        sweeping.table(pack, answers, out)
        for text in [*(f"contradicted: {row}" for row in contradicted), *(f"proposed: {row}" for row in proposed)]:
            out.print(escape(text))
        rows.append(
            {
                "pack": pack.id,
                "lane": lane,
                "answers": [answer.as_json() for answer in answers],
                "affected": affected(answers),
                "contradicted": contradicted,
                "proposed": proposed,
            }
        )
        codes.append(sweeping.exit_code(answers, contradicted))
    whole = recorder.tell(out)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    raise typer.Exit(max(codes, key=[Exit.OK, Exit.CANNOT_TEST, Exit.CONTRADICTED].index) if whole else Exit.USAGE)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
