"""Hunk ablation: drop each hunk of a patch in turn; every one must be needed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from unidiff import PatchSet

from reproducers.errors import PatchlaneError
from reproducers.experiment import Request, execute
from reproducers.schema import Pack, load_named, load_packs
from reproducers.store import Store
from reproducers.table import count
from reproducers.verdicts import Exit, Verdict

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


def without_hunk(patch: str, dropped: int) -> str:
    """The patch text without its hunk number ``dropped`` (0-based, over all files), later hunks renumbered."""
    files, text, number = PatchSet(patch), "", 0
    for file in files:
        shift, rows = 0, ""
        for hunk in file:
            if number == dropped:
                shift = hunk.target_length - hunk.source_length
            else:
                start = hunk.target_start - shift
                span = f"-{hunk.source_start},{hunk.source_length} +{start},{hunk.target_length}"
                rows += f"@@ {span} @@\n" + "".join(str(line) for line in hunk)
            number += 1
        if rows:
            text += f"--- {file.source_file}\n+++ {file.target_file}\n{rows}"
    return text


def with_patch(pack: Pack, text: str, folder: Path) -> Pack:
    """The same pack with another patch, in a folder of its own beside the same ``needs.yaml``."""
    copy = folder / pack.folder.name
    copy.mkdir(parents=True)
    for name in ("pack.yaml", "reproducer.py"):
        (copy / name).symlink_to(pack.folder / name)
    (folder / "needs.yaml").symlink_to(pack.folder.parent / "needs.yaml")
    (copy / "fix.patch").write_text(text)
    return pack.model_copy(update={"folder": copy})


def ablations(pack: Pack) -> Iterator[tuple[str, str]]:
    """(name of the dropped hunk, patch text without it)."""
    text = pack.patch.read_text()
    names = [f"{file.path} hunk {n}" for file in PatchSet(text) for n, _ in enumerate(file, 1)]
    for number, name in enumerate(names):
        yield name, without_hunk(text, number)


@app.command()
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="packs, as pack05")] = None,
    every: Annotated[bool, typer.Option("--all", help="every pack that has a patch and the lane")] = False,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use, for the lane's timeout_s")
    ] = None,
) -> None:
    """Exit 1 when a hunk can be dropped and the verdict stays REPRODUCED_AND_FIXED."""
    spare = 0
    named = [p for p in load_packs() if p.patch.is_file() and lane in p.lanes] if every else load_named(packs or [])
    if not named:
        raise PatchlaneError("no pack named", "python -m reproducers.ablate pack09, or --all")
    for pack in named:
        if not pack.patch.is_file():
            raise PatchlaneError(f"{pack.id} has no patch to ablate", "python -m reproducers.run --list")
        for name, text in ablations(pack):
            with tempfile.TemporaryDirectory() as scratch:
                changed = with_patch(pack, text, Path(scratch))
                run = execute(changed, Request(lane=lane, timeout_s=timeout), Store(), lambda arm, line: None)
            spare += run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED
            typer.echo(f"{pack.id} without {name}: {run.ruling.verdict.value}: {run.ruling.reason[:100]}")
    typer.echo(f"{count(spare, 'hunk')} can be dropped without notice")
    raise typer.Exit(Exit.CONTRADICTED if spare else Exit.OK)


if __name__ == "__main__":
    from reproducers.cli import guarded

    guarded(app)
