"""Verify or sign receipts: one in-toto statement (Test Result v0.1) and one log a run, chained by digest.

``python -m reproducers.receipts verify [DIR]`` recomputes every digest, derives every verdict anew from the recorded
observations, compares each statement with its log, its place and its predecessor, and names what was changed.
``--signers FILE`` says who vouches for each; ``sign --key KEY`` signs statements by ssh-keygen; ``archive`` moves
superseded ones into the archives of their folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.base.wording import count
from reproducers.evidence.shelf import COMMITTED, FOLDERS, every, remedy, signature, statements
from reproducers.kept.archive import INDEX

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def verify(
    root: Annotated[Path, typer.Argument(help="folder of receipts")] = COMMITTED,
    signers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="allowed signers as ssh-keygen reads them: say who signed")
    ] = None,
) -> None:
    """Recompute every digest and verdict. Exit 1, naming each change, if a receipt was changed or there is none."""
    from rich.console import Console

    from reproducers.evidence import heads
    from reproducers.evidence.verification import verify_all
    from reproducers.record.schema import ROOT
    from reproducers.studies.suites import keeping

    if not root.is_dir():
        raise PatchlaneError(f"{root} is not a folder", "python -m reproducers.run PACK writes build/receipts")
    own = root.resolve() == COMMITTED
    with Console(stderr=True).status("verifying") as told:
        faults = verify_all(root, tell=lambda done, of: told.update(f"verifying: {done} of {count(of, 'receipt')}"))
    faults |= keeping.all_faults(root)
    folders = sorted(root.glob(FOLDERS))
    paths = [path for folder in folders for path in statements(folder, archived=folder / INDEX not in faults)]
    number, vouched = len(paths), _signers(paths, signers, faults) if signers else []
    for path, rows in faults.items():
        for row in rows:
            typer.echo(f"{path.relative_to(root)}: {row}" + (f"; fix: {remedy(path)}" if path.name == INDEX else ""))
    lost = [*heads.lost(ROOT / "manifest.yaml", root), *heads.unnamed(ROOT / "manifest.yaml", root)] if own else []
    for row in [*lost, *keeping.broken(root)]:
        typer.echo(row)
    suites = f" and {count(len(kept), 'record')} of upstream's tests" if (kept := keeping.every(root)) else ""
    typer.echo(f"{count(number, 'receipt')}{suites}, {len(faults)} faulty")
    for row in vouched:
        typer.echo(row)
    if not number:
        typer.echo(f"{root} holds no receipts; python -m reproducers.run PACK --receipts {root} writes them", err=True)
    raise typer.Exit(Exit.CONTRADICTED if faults or lost or not number else Exit.OK)


def _signers(paths: list[Path], signers: Path, faults: dict[Path, list[str]]) -> list[str]:
    """A line a signer and one for the rest; a signature that does not hold is added to ``faults``."""
    from reproducers.studies.signers import signed

    if not signers.is_file():
        raise PatchlaneError(f"--signers {signers} is not a file", "ALLOWED SIGNERS in man ssh-keygen tells its form")
    numbers: dict[str, int] = {}
    for path in paths:
        signer, fault = signed(path, signers)
        if fault:
            faults.setdefault(path, []).append(fault)
        numbers[signer or ""] = numbers.get(signer or "", 0) + 1
    rows = [f"signed by {name}: {count(number, 'receipt')}" for name, number in sorted(numbers.items()) if name]
    return [*rows, f"signed by nobody in {signers}: {count(numbers.get('', 0), 'receipt')}"]


@app.command()
def sign(
    receipts: Annotated[list[Path] | None, typer.Argument(help="statements (default: all open committed ones)")] = None,
    *,
    key: Annotated[Path, typer.Option(help="an OpenSSH private key, or the public key of one that ssh-agent holds")],
) -> None:
    """Sign statements; each signature lies beside its statement, NAME.json.sig. Statements that are signed stay."""
    from reproducers.studies import signers

    for path in receipts or filter(Path.is_file, every(COMMITTED)):
        if not path.is_file():
            raise PatchlaneError(f"{path} is not a file", "python -m reproducers.receipts sign --key KEY signs all")
        if receipts or not signature(path).exists():
            typer.echo(signers.sign(path, key))


@app.command()
def archive(
    packs: Annotated[list[str] | None, typer.Argument(help="pack05, pack09 … (default: all)")] = None,
    days: Annotated[int, typer.Option(min=0, help="only what was taken so many days ago or earlier")] = 14,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="name what would go, and change nothing")] = False,
) -> None:
    """Move superseded receipts and scores into the archive of their folder, where every reader reads them like files.

    The newest of each pin, lane and arm, and all that contradict their pack, are signed or cited, lie open.
    """
    from reproducers.studies import archiving

    for line in archiving.archived(packs or [], days, dry_run):
        typer.echo(line)


@app.callback()
def _main() -> None:
    """Receipts of runs."""


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
