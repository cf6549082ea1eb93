"""What a run trains on, held to model/patches.lock before it begins and to its checkpoint on resuming.

``python -m model.lock write`` makes the lock anew from packs and manifest, ``check`` compares it with them.
"""

from __future__ import annotations

import typer

from model.patched import lock_file
from model.patched.lock_file import WRITE
from reproducers.base.files import write_atomic
from reproducers.base.verdicts import Exit
from reproducers.upstream.store import Store

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def write() -> None:
    """Make model/patches.lock anew from the packs that are validated."""
    text = lock_file.render(lock_file.current(Store()))
    same = lock_file.LOCK.is_file() and lock_file.LOCK.read_text() == text
    write_atomic(lock_file.LOCK, text.encode())
    typer.echo(f"{lock_file.LOCK.name} " + ("is current" if same else "rewritten"))


@app.command()
def check() -> None:
    """Exit 1 when model/patches.lock is not what packs and manifest give."""
    found = lock_file.current(Store())
    rows = lock_file.differences(lock_file.read(), found)
    if not rows and lock_file.LOCK.read_text() != lock_file.render(found):
        rows = ["titles or layout"]
    for row in rows:
        typer.echo(f"(lock, packs) {row}")
    typer.echo("lock check: " + (f"{len(rows)} differences; fix: {WRITE}" if rows else "clean"))
    raise typer.Exit(Exit.CONTRADICTED if rows else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
