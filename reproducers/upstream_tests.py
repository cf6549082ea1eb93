"""Run upstream's own tests of what a patch touches, on the pristine and on the patched tree.

``python -m reproducers.upstream_tests pack09``. Each test file runs as upstream wrote it, in a process of its own with
the limits of an arm. A test that passes without the patch and fails with it, and does so again alone, is broken by it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers.base.verdicts import Verdict
from reproducers.record.schema import ROOT, load_named

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
KEPT = ROOT / "receipts"


@app.command()
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="packs with a patch, as pack09")] = None,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    at: Annotated[str, typer.Option(help="a pin's name, release or SHA")] = "live",
    upstream: Annotated[
        Path | None, typer.Option(help="a clone that has the pin's commit, for tests that the store lacks")
    ] = None,
    tests: Annotated[
        list[str] | None, typer.Option(help="a test file of upstream's repository, instead of those that are listed")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds a test file may use, for the lane's timeout_s")
    ] = None,
    offline: Annotated[bool, typer.Option(help="use only what the store holds")] = False,
    host: Annotated[str, typer.Option(envvar="PATCHLANE_HOST", help="this host's alias")] = "local",
    receipts: Annotated[Path, typer.Option(help="where records go")] = Path("build/receipts"),
    keep: Annotated[bool, typer.Option(help="write records to receipts/ of the checkout instead")] = False,
    take: Annotated[Path | None, typer.Option(help="run nothing: bring another host's records into receipts/")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the records as JSON on stdout")] = False,
) -> None:
    """Exit 1 when a patch breaks a test of upstream's, 77 when none could be run, 0 otherwise."""
    from reproducers.studies.suites import keeping, showing

    if take is not None:
        for path in keeping.take(take, KEPT):
            typer.echo(f"taken: {path.relative_to(ROOT)}")
        return
    chosen = load_named(packs or [])
    if not chosen or lane not in ("cpu", "cuda"):
        raise PatchlaneError("no pack named, or no such lane", "python -m reproducers.upstream_tests pack09 --lane cpu")
    if offline:
        os.environ["PATCHLANE_OFFLINE"] = "1"
    from patchlane.base import disk
    from reproducers.host import cores
    from reproducers.studies.suites.examination import Asked, Examiner
    from reproducers.trial import screen
    from reproducers.trial.arms import kill_children
    from reproducers.upstream.store import Store

    root = KEPT if keep else receipts
    disk.usable_folder(root, "--receipts DIR names another folder")
    out = screen.console(as_json)
    store = Store(progress=screen.Announcer(out))
    redact = keeping.redactor(store, upstream)
    asked = Asked(lane, at, upstream, tuple(tests or ()), timeout, cores.threads(1))
    examiner = Examiner(store, asked, redact, lambda line: out.print(line, markup=False))
    records, untested = [], 0
    try:
        for pack in chosen:
            try:
                result = keeping.record(examiner.examine(pack), host, [redact(word) for word in sys.argv[1:]])
            except CannotTestHere as error:
                out.print(f"{pack.id}: UNTESTABLE: {error}", markup=False)
                untested += 1
                continue
            records.append(result)
            out.print(f"record {keeping.write(result, root, redact)}", markup=False)
    except BaseException:
        kill_children()
        raise
    showing.summary(records, out)
    if as_json:
        typer.echo(json.dumps([result.model_dump(mode="json", exclude_none=True) for result in records], indent=1))
    raise typer.Exit(_code([result.verdict for result in records], untested))


def _code(verdicts: list[Verdict | None], untested: int) -> Exit:
    if Verdict.FIX_REGRESSES in verdicts:
        return Exit.CONTRADICTED
    return Exit.CANNOT_TEST if untested or Verdict.UNTESTABLE in verdicts else Exit.OK


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
