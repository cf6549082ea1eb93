"""Run packs and write their receipts. ``python -m reproducers.run pack05``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.exits import Exit
from reproducers.record import choice
from reproducers.record.schema import load_each, refuse

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="pack05, 05 or 5; several run in parallel")] = None,
    run_all: Annotated[bool, typer.Option("--all", help="every pack that has the lane")] = False,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    at: Annotated[
        str | None,
        typer.Option(help="a pin's name, a release, a tag, or a SHA or its first 7 digits (default: live)"),
    ] = None,
    upstream: Annotated[
        Path | None,
        typer.Option(help="a checkout or unpacked package to test as it stands; with --at: the clone to take it from"),
    ] = None,
    build: Annotated[
        str | None, typer.Option(help="build the commit by this command first; with --arm pristine")
    ] = None,
    allow_dirty: Annotated[bool, typer.Option(help="test a checkout with local changes; the receipt says so")] = False,
    arm: Annotated[str, typer.Option(help="both, pristine or patched")] = "both",
    repeats: Annotated[int, typer.Option("-n", min=1, help="repeats, each with its own seed; all must agree")] = 1,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use (default: the lane's timeout_s)")
    ] = None,
    census: choice.Census = None,
    missing_from: Annotated[
        list[Path] | None, typer.Option(help="skip packs with a receipt in this folder that still holds")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(min=0, help="packs at a time, on cuda each on its own GPU (default: one a core, on cuda one)"),
    ] = 0,
    offline: Annotated[bool, typer.Option(help="use only the files in the store")] = False,
    host: Annotated[str, typer.Option(envvar="PATCHLANE_HOST", help="this host's alias")] = "local",
    receipts: Annotated[Path, typer.Option(help="where receipts go")] = Path("build/receipts"),
    as_json: Annotated[bool, typer.Option("--json", help="results as JSON on stdout")] = False,
    junitxml: Annotated[Path | None, typer.Option(help="results as JUnit XML")] = None,
    bisect: Annotated[bool, typer.Option(help="for git bisect run, of HEAD: 0 good, 1 bad, 125 cannot test")] = False,
    listing: Annotated[bool, typer.Option("--list", help="list all packs, or those chosen; run none")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="show everything that the arms print")] = False,
) -> None:
    """Reproduce each pack's bug on pristine upstream, apply its patch, and rule on both."""
    if listing and not (packs or run_all):
        known, faults = load_each()
        choice.list_packs(known, as_json)
        refuse(faults)
        return
    chosen = choice.chosen(packs or [], run_all, lane, arm)
    if offline:
        os.environ["PATCHLANE_OFFLINE"] = "1"
    from reproducers.trial.experiment import Request
    from reproducers.upstream.pins import UPSTREAM

    if bisect:
        tree = UPSTREAM if at is None else at
        checkout = upstream or Path.cwd()
        request = Request(tree, lane, "pristine", upstream=checkout, allow_dirty=True, timeout_s=timeout, build=build)
        from reproducers.trial.bisect import answer

        raise answer(chosen[0], request)
    tree = ("live" if upstream is None else UPSTREAM) if at is None else at
    if missing_from:
        from reproducers.evidence.wanting import left

        chosen = left(chosen, lane, tree, missing_from, arm, upstream)
    if listing or not chosen:
        return choice.list_packs(chosen, as_json)
    from patchlane.base import disk
    from reproducers.base import cli
    from reproducers.evidence import saving
    from reproducers.host import cores
    from reproducers.trial import screen, session
    from reproducers.upstream import pins

    pins.settle_all(chosen, tree, upstream)
    disk.usable_folder(receipts, "--receipts DIR names another folder")
    if junitxml:
        disk.usable_file(junitxml, "--junitxml FILE names another file")
    workers = jobs or (1 if lane == "cuda" else min(len(chosen), cores.usable()))
    threads, told = cores.threads(workers), choice.counted(census, lane)
    request = Request(tree, lane, arm, repeats, upstream, allow_dirty, threads, timeout, None, build, told)
    console = screen.console(as_json)
    recorder = saving.Recorder(receipts, host, sys.argv[1:])
    cli.leaves(lambda: (recorder.left(), ["--missing-from", str(receipts)] if recorder.written else []))
    runs = session.run_packs(chosen, request, workers, console, verbose, recorder.write)
    in_place = recorder.tell(console)
    session.summary(runs, console)
    if as_json:
        typer.echo(json.dumps([session.as_json(run) for run in runs], indent=1))
    if junitxml:
        session.write_junit(runs, junitxml)
    raise typer.Exit(session.exit_code(runs) if in_place else Exit.USAGE)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    if "--bisect" in sys.argv:
        from reproducers.trial.bisect import answering

        with answering():
            guarded(app)
    guarded(app)
