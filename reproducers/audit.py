"""Say which packs' bugs an installed environment has: ``python -m reproducers.audit [--python PATH]``. Needs no GPU.

Nothing of the environment is run. The functions that a pack's patch changes are compared, by digest, with those of
trees of which receipts say whether they have the bug. Exit 1 when a bug is unpatched, 0 when none is, 77 when nothing
could be decided or a line was not understood. What nobody has measured is unknown, and is said to be; ``--run``
measures it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reproducers.record.fingerprint import Fingerprints

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    packs: Annotated[list[str] | None, typer.Argument(metavar="PACK", help="packs, as pack09 (default: all)")] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="an interpreter, a virtual environment or a folder of packages (default: this Python)"),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="judge what requirements, a lock, a project, a list, a script or a Dockerfile ask for; - is stdin",
        ),
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="PACK", help="leave this pack out; repeatable")] = None,
    run: Annotated[
        bool, typer.Option("--run", help="of the packs named, run the reproducer where the code is unknown")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the answers as JSON on stdout")] = False,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the answers as SARIF 2.1.0")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="write packs/fingerprints.json anew from receipts and trees, and stop")
    ] = False,
) -> None:
    """Audit an environment."""
    from patchlane.base.errors import PatchlaneError
    from reproducers.record import fingerprint
    from reproducers.record.schema import load_named, load_packs
    from reproducers.studies.installed import advice, answers, judgement
    from reproducers.studies.installed.present import environment
    from reproducers.studies.installed.shown import report

    if write:
        return _write()
    if requirements and (python or run):
        raise PatchlaneError("--requirements goes with neither --python nor --run", "leave one of them out")
    if run and not packs:
        raise PatchlaneError("--run: no pack named", "python -m reproducers.audit pack09 --run")
    left_out = {pack.id for pack in load_named(ignore or [])}
    every = load_packs()
    chosen = [pack for pack in (load_named(packs) if packs else every) if pack.id not in left_out]
    known = fingerprint.load(fingerprint.path_of(every))
    if packs and (without := [pack.id for pack in chosen if pack.id not in known.packs]):
        said = f"{', '.join(without)}: no receipt shows a bug that could be mended, so there is nothing to look for"
        raise PatchlaneError(said, "leave it out; after new receipts python -m reproducers.audit --write")
    seen = (
        environment.of_requirements(requirements, judgement.repositories(every))
        if requirements
        else environment.of_python(python, known)
    )
    judged = judgement.audit(chosen, known, seen, every)
    if run:
        from reproducers.studies.installed.measured import all_measured

        judged = all_measured(judged, seen)
    judged, mends = advice.advised(judged, every, known, seen)
    if sarif:
        from reproducers.studies.installed.shown.sarif import write as write_sarif

        write_sarif(sarif, judged, chosen, seen.unread)
    typer.echo((report.as_json if as_json else report.text)(judged, mends, seen))
    raise typer.Exit(answers.exit_code(judged, seen.unread))


def _write() -> None:
    """Write the fingerprints; say which trees could not be got, and so keep what the file said of them."""
    from patchlane.base.files import write_atomic
    from reproducers.evidence.shelf import COMMITTED
    from reproducers.record import fingerprint
    from reproducers.record.schema import load_packs
    from reproducers.studies.installed.known import made
    from reproducers.upstream.store import Store

    packs = load_packs()
    path = fingerprint.path_of(packs)
    before: Fingerprints = fingerprint.load(path) if path.is_file() else fingerprint.Fingerprints(packs={})
    known, wanting = made(packs, COMMITTED, Store(), before)
    write_atomic(path, known.text.encode())
    for tree in wanting:
        typer.echo(f"kept as it was, for the tree is out of reach: {tree}")
    typer.echo(f"{path}: {len(known.packs)} packs, {sum(len(each.trees) for each in known.packs.values())} trees")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
