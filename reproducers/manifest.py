"""Write or check ``manifest.yaml`` and ``packs/README.md``, pure functions of packs and receipts.

``refresh [DIR]`` imports the verified receipts of a host run, by default those in ``build/receipts``, and rewrites the
manifest; ``check`` derives it anew and compares, with it the digests of all other generated files and the states that
``packs/fingerprints.json`` says. Nothing else writes the manifest. ``refresh`` lowers a pack's state or a lane's
verdict only with ``--accept``.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.base.files import write_atomic
from patchlane.base.wording import count
from reproducers.desk import unwritten
from reproducers.evidence import heads
from reproducers.evidence.manifest import (
    TAKEN,
    demotions,
    entries_before,
    faults_of,
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
from reproducers.studies.installed import known
from reproducers.studies.suites import keeping

app = typer.Typer(add_completion=False, help=__doc__)


def _tell_engines(entries: dict[str, Entry], root: Path, verbose: bool) -> None:
    """Print which newest receipts were taken with another engine than this one; they are not stale."""
    lanes = [(f"{name} {lane}", row) for name, entry in entries.items() for lane, row in entry.lanes.items()]
    other = [(name, lane) for name, lane in lanes if digests(root / lane.receipt)["engine"] != engine.digest()]
    for name, lane in other if verbose else ():
        typer.echo(f"{name}: taken on {lane.taken} with another engine: {lane.receipt}")
    if other:
        typer.echo(f"another engine took {len(other)} of {len(lanes)} lanes" + " (-v lists them)" * (not verbose))


@app.command()
def refresh(
    source: Annotated[
        Path | None, typer.Argument(help=f"folder of new receipts (default: {TAKEN}, if it exists)")
    ] = None,
    no_import: Annotated[bool, typer.Option("--no-import", help="import no receipts")] = False,
    accept: Annotated[bool, typer.Option(help="write even if a state or a verdict gets worse")] = False,
) -> None:
    """Import receipts and rewrite manifest.yaml; print what changed. Exit 1 at a demotion, with nothing written."""
    if no_import and source is not None:
        raise PatchlaneError(f"refresh {source} --no-import", "leave one of them out")
    asked = [str(source)] if source else ["--no-import"] if no_import else []
    if not asked and TAKEN.is_dir():
        source = TAKEN
    root, packs = ROOT / "receipts", unwritten.refuse(load_packs(), ["pack.yaml"])
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "manifest.lock"):
        for folder in (ROOT, ROOT / "packs", *root.glob(FOLDERS)):
            sweep(folder)
        new, left = importable(packs, source, root) if source is not None else ([], 0)
        if not accept:
            heads.refuse_loss(ROOT / "manifest.yaml", root, source)
        verify_all(root, named=heads.proved(root))  # what is faulty is named when it is read
        content = preview_of(packs, root, new)
        if worse := demotions(entries_before(packs, root), content.packs):
            typer.echo("\n".join(f"demotion: {row}" for row in worse))
            if not accept:
                again = " ".join(["python -m reproducers.manifest refresh", *asked, "--accept"])
                typer.echo(f"{count(len(worse), 'demotion')}, nothing written; if intended: {again}")
                raise typer.Exit(Exit.CONTRADICTED)
        import_receipts(new, root)
        if new or (asked and not no_import):
            typer.echo(f"{count(len(new), 'new receipt')} from {source}")
        if left:
            runs = "runs that could not test or had no release or commit"
            typer.echo(f"not imported: {count(left, 'receipt')} of {runs}")
        for name, after in generated(packs, content).items():
            old = (ROOT / name).read_text(errors="replace") if (ROOT / name).exists() else ""
            write_atomic(ROOT / name, after.encode())
            for line in difflib.unified_diff(old.splitlines(), after.splitlines(), "before", "after", "", "", 1, ""):
                typer.echo(line)
            typer.echo(f"{name} is current" if old == after else f"{name} rewritten")


@app.command()
def check(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="name the receipts of another engine")] = False,
) -> None:
    """Exit 1 if packs and receipts give another manifest, a receipt does not verify, or a generated file changed."""
    root, packs = ROOT / "receipts", unwritten.refuse(load_packs(), ["pack.yaml"])
    broken = verify_all(root, named=heads.proved(root)) | keeping.all_faults(root)
    faults = [f"{p.parent.name}/{p.name}: {'; '.join(rows)}; fix: {remedy(p)}" for p, rows in broken.items()]
    faults += heads.lost(ROOT / "manifest.yaml", root)
    if not faults:
        content, wrong = known.compared(packs, root)
        faults += [*faults_of(packs, content), *wrong]
        _tell_engines(content.packs, root, verbose)
    typer.echo("\n".join([*faults, f"manifest check: {count(len(faults), 'fault') if faults else 'clean'}"]))
    raise typer.Exit(Exit.CONTRADICTED if faults else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
