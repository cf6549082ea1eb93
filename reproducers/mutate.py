"""Make mistakes in the lines that a patch adds, and try whether the pack's checks see each.

Other right fixes, in ``alternatives/``, are tried beside them: the checks must accept these.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from reproducers.record import choice
from reproducers.record.schema import load_named

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def main(
    packs: Annotated[list[str], typer.Argument(help="packs, as pack05")],
    only: Annotated[
        str | None,
        typer.Option(help="hand: those in mutants/ and alternatives/; generated: those of the patch; or alternatives"),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="how many of the generated ones to try (default: all)")
    ] = None,
    seed: Annotated[int, typer.Option(help="decides which ones --sample draws")] = 0,
    listing: Annotated[bool, typer.Option("--list", help="list the mutants and try none")] = False,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    jobs: Annotated[
        int, typer.Option(min=0, help="mutants at a time (default: one a core as memory allows, one on cuda)")
    ] = 0,
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use, for the lane's timeout_s")
    ] = None,
    within: Annotated[
        float | None, typer.Option(min=1, help="seconds after which no mutant is begun: the tried ones are the sample")
    ] = None,
    census: choice.Census = None,
    keep: Annotated[bool, typer.Option("--keep", help="write the record to receipts/ too, as evidence")] = False,
    host: Annotated[str, typer.Option(envvar="PATCHLANE_HOST", help="this host's alias")] = "local",
    receipts: Annotated[Path, typer.Option(help="where records go")] = Path("build/receipts"),
) -> None:
    """Exit 1 when a mutant survives that mutants/equivalent.yaml does not explain, an explanation is stale, or an
    alternative is refused."""
    if only not in (None, "hand", "generated", "alternatives"):
        raise PatchlaneError(f"--only {only}", "--only hand, --only generated or --only alternatives")
    named = load_named(packs)
    for pack in named:
        if not pack.patch.is_file():
            raise PatchlaneError(f"{pack.id} has no patch to make mistakes in", "python -m reproducers.run --list")
    from patchlane.base import disk
    from reproducers.evidence import shelf
    from reproducers.evidence.receipts import alias
    from reproducers.studies.mutation import score
    from reproducers.studies.mutation.sitting import Asked, chosen, sit

    told = choice.counted(census, lane)
    asked, ends = Asked(only, sample, seed, lane, jobs, timeout, within, told), []  # type: ignore[arg-type]
    alias(host)
    if not listing:
        disk.usable_folder(receipts, "--receipts DIR names another folder")
    for pack in named:
        if listing:
            typer.echo("".join(f"{pack.id} {row}\n" for row in chosen(pack, asked).listing()), nl=False)
            continue
        sitting = sit(pack, asked, lambda line: typer.echo(line, err=True))
        typer.echo("\n".join(score.lines(sitting)))
        record = score.record(sitting, host, sys.argv[1:], seed)
        for root in (receipts, shelf.COMMITTED) if keep else (receipts,):
            typer.echo(f"record {score.write(record, root, score.roles(sitting.ground))}")
        ends.append(sitting.exit_code())
    raise typer.Exit(next((end for end in (Exit.CONTRADICTED, Exit.CANNOT_TEST) if end in ends), Exit.OK))


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
