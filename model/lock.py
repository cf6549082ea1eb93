"""Write or check model/patches.lock: the patches and trees that a run may train on, by digest.

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
    """Make model/patches.lock anew from the validated packs."""
    text = lock_file.render(lock_file.current(Store()))
    same = lock_file.LOCK.is_file() and lock_file.LOCK.read_text() == text
    write_atomic(lock_file.LOCK, text.encode())
    typer.echo(f"{lock_file.LOCK.name} " + ("is current" if same else "rewritten"))


@app.command()
def check() -> None:
    """Exit 1 if model/patches.lock differs from packs and manifest."""
    current = lock_file.current(Store())
    rows = lock_file.differences(lock_file.read(), current)
    if not rows and lock_file.LOCK.read_text() != lock_file.render(current):
        rows = ["titles or layout differ"]
    for row in rows:
        typer.echo(f"(lock, packs) {row}")
    typer.echo("lock check: " + (f"{len(rows)} differences; fix: {WRITE}" if rows else "clean"))
    raise typer.Exit(Exit.CONTRADICTED if rows else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
