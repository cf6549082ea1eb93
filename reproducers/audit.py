"""Say which packs' bugs an installed environment has: ``python -m reproducers.audit [--python PATH]``. Needs no GPU.

Nothing of the environment is run. The functions that a pack's patch changes are compared, by digest, with those of
trees of which receipts say whether they have the bug. Exit 1 when a bug is unpatched, 0 when none is, 77 when nothing
could be decided or a line was not understood. What nobody has measured is unknown, and is said to be; ``--run``
measures it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError

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
    release: Annotated[
        str | None, typer.Option(metavar="NAME==VERSION", help="a table of one release's bugs, by its number")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="PACK", help="leave this pack out; repeatable")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="only packs that came in on this day or later")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(metavar="HARM,...", help="exit 1 for bugs of these harms only, such as crash")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="FILE|URL", help="another index of known bugs")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="put in all patches that fit, or none")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with --apply: only say what would be done")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="take out what --apply put in")] = False,
    run: Annotated[
        bool, typer.Option("--run", help="of the packs named, run the reproducer where the code is unknown")
    ] = False,
    theirs: Annotated[str | None, typer.Option(metavar="QUEUE", help="say which carried patches are in, too")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the answers as JSON on stdout")] = False,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the answers as SARIF 2.1.0")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="write packs/fingerprints.json anew from receipts and trees, and stop")
    ] = False,
) -> None:
    """Audit an environment."""
    from patchlane.verb.request import Request, answered
    from reproducers.record.schema import load_named

    if write:
        return _write()
    if run and not packs:
        raise PatchlaneError("--run: no pack named", "python -m reproducers.audit pack09 --run")
    if data is None:
        load_named([*(packs or []), *(ignore or [])])
    request = Request(
        packs=tuple(packs or ()),
        python=python,
        requirements=requirements,
        release=release,
        ignore=tuple(ignore or ()),
        since=since,
        fail_on=fail_on,
        data=data,
        as_json=as_json,
        sarif=sarif,
        apply=apply,
        dry_run=dry_run,
        revert=revert,
    )
    if run:  # the engine is imported for this alone
        from reproducers.studies.installed.measured import all_measured
    code = answered(request, all_measured if run else None)
    if theirs:
        from reproducers.carried import entry, present

        typer.echo(present.said(entry.load(theirs), python), err=as_json)
    raise typer.Exit(code)


def _write() -> None:
    """Write the index; say which trees could not be got, and so keep what the file said of them."""
    from patchlane.base.files import write_atomic
    from patchlane.known.index import SCHEMA, Index, load
    from reproducers.evidence.shelf import COMMITTED
    from reproducers.record.schema import load_packs
    from reproducers.studies.installed.known import made, path_of
    from reproducers.upstream.store import Store

    packs = load_packs()
    path = path_of(packs)
    before = load(path).index if path.is_file() else Index(SCHEMA, "", {})
    known, wanting = made(packs, COMMITTED, Store(), before)
    write_atomic(path, known.text.encode())
    for tree in wanting:
        typer.echo(f"kept as it was, for the tree is out of reach: {tree}")
    typer.echo(f"{path}: {len(known.packs)} packs, {sum(len(each.trees) for each in known.packs.values())} trees")


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
