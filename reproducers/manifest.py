"""What was validated where: ``manifest.yaml`` and ``packs/README.md``, pure functions of packs and receipts.

``refresh [DIR]`` imports the verified receipts of a host run, by default those in ``build/receipts``, and rewrites the
manifest; ``check`` regenerates and compares it. Nothing else writes it. What would lower a pack's state or a lane's
verdict is written with ``--accept`` only.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock

from reproducers.base.errors import PatchlaneError
from reproducers.base.files import write_atomic
from reproducers.base.verdicts import Exit
from reproducers.evidence import heads
from reproducers.evidence.manifest import (
    TAKEN,
    content_of,
    demotions,
    entries_before,
    generated,
    import_receipts,
    importable,
    preview_of,
)
from reproducers.evidence.receipts import digests
from reproducers.evidence.shelf import FOLDERS, remedy, sweep
from reproducers.evidence.verification import verify_all
from reproducers.record import engine
from reproducers.record.entry import Entry
from reproducers.record.schema import ROOT, load_packs
from reproducers.suites import keeping

app = typer.Typer(add_completion=False, help=__doc__)


def _tell_engines(entries: dict[str, Entry], root: Path, verbose: bool) -> None:
    """Say which newest receipts were taken with another engine than this one, which does not make them stale."""
    lanes = [(f"{name} {lane}", found) for name, entry in entries.items() for lane, found in entry.lanes.items()]
    other = [(name, lane) for name, lane in lanes if digests(root / lane.receipt)["engine"] != engine.digest()]
    for name, lane in other if verbose else ():
        typer.echo(f"{name}: taken on {lane.taken} with another engine: {lane.receipt}")
    if other:
        typer.echo(
            f"taken with another engine: {len(other)} of {len(lanes)} lanes" + ("" if verbose else " (-v: which)")
        )


@app.command()
def refresh(
    source: Annotated[
        Path | None, typer.Argument(help=f"folder of new receipts (default: {TAKEN}, where there is one)")
    ] = None,
    no_import: Annotated[bool, typer.Option("--no-import", help="take in no new receipts")] = False,
    accept: Annotated[bool, typer.Option(help="write even what lowers a state or a verdict")] = False,
) -> None:
    """Import receipts and rewrite manifest.yaml; prints what changed. Exit 1, nothing written, at a demotion."""
    if no_import and source is not None:
        raise PatchlaneError(f"refresh {source} --no-import", "leave one of them out")
    asked = [str(source)] if source else ["--no-import"] if no_import else []
    if not asked and TAKEN.is_dir():
        source = TAKEN
    root, packs = ROOT / "receipts", load_packs()
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "manifest.lock"):
        for folder in (ROOT, ROOT / "packs", *root.glob(FOLDERS)):
            sweep(folder)
        new, left = importable(packs, source, root) if source is not None else ([], 0)
        if not accept:
            heads.refuse_loss(ROOT / "manifest.yaml", root, source)
        content = preview_of(packs, root, new)
        if worse := demotions(entries_before(packs, root), content.packs):
            typer.echo("\n".join(f"demotion: {row}" for row in worse))
            if not accept:
                again = " ".join(["python -m reproducers.manifest refresh", *asked, "--accept"])
                typer.echo(f"{len(worse)} demotions, nothing written; where they are meant: {again}")
                raise typer.Exit(Exit.CONTRADICTED)
        import_receipts(new, root)
        if new or (asked and not no_import):
            typer.echo(f"{len(new)} new receipts from {source}")
        if left:
            typer.echo(f"not imported: {left} receipts that could not test, or of a folder without release or commit")
        for name, after in generated(packs, content).items():
            old = (ROOT / name).read_text() if (ROOT / name).exists() else ""
            write_atomic(ROOT / name, after.encode())
            for line in difflib.unified_diff(old.splitlines(), after.splitlines(), "before", "after", "", "", 1, ""):
                typer.echo(line)
            typer.echo(f"{name} is current" if old == after else f"{name} rewritten")


@app.command()
def check(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="name the receipts of another engine")] = False,
) -> None:
    """Exit 1 when the manifest is not what packs and receipts give, or a receipt does not verify."""
    root, packs = ROOT / "receipts", load_packs()
    found = verify_all(root) | keeping.all_faults(root)
    faults = [f"{p.parent.name}/{p.name}: {'; '.join(rows)}; fix: {remedy(p)}" for p, rows in found.items()]
    faults += heads.lost(ROOT / "manifest.yaml", root)
    if not faults:
        content = content_of(packs, root)
        for name, text in generated(packs, content).items():
            if not (ROOT / name).exists() or (ROOT / name).read_text() != text:
                faults.append(f"{name} is not current; fix: python -m reproducers.manifest refresh")
        _tell_engines(content.packs, root, verbose)
    for fault in faults:
        typer.echo(fault)
    typer.echo("manifest check: " + (f"{len(faults)} faults" if faults else "clean"))
    raise typer.Exit(Exit.CONTRADICTED if faults else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
