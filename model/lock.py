"""Write, check or explain the lock of a stack: the patches and trees that a run may train on, by digest.

``python -m model.lock write`` makes the lock anew from packs and manifest, ``check`` compares it with them, ``table``
prints what each pack is worth on the stack, and ``page`` writes docs/stacks.md with the tables of all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.patched import lock_file, overlay, stacks
from model.reports import worth
from patchlane.base.exits import Exit
from patchlane.base.files import write_atomic
from reproducers.record import schema
from reproducers.upstream.store import Store

app = typer.Typer(add_completion=False, help=__doc__)
Named = Annotated[str, typer.Option("--stack", help="a stack of model/stacks.yaml")]
Clone = Annotated[Path | None, typer.Option("--upstream", help="the clone to take a stack's commit from")]


@app.command()
def write(name: Named = stacks.DEFAULT, upstream: Clone = None) -> None:
    """Make the stack's lock anew from the validated packs."""
    stack = stacks.named(name)
    text = lock_file.render(lock_file.current(Store(), stack, upstream), stack)
    same = stack.lock.is_file() and stack.lock.read_text() == text
    write_atomic(stack.lock, text.encode())
    typer.echo(f"{stack.lock.name} " + ("is current" if same else "rewritten"))


@app.command()
def check(name: Named = stacks.DEFAULT, upstream: Clone = None) -> None:
    """Exit 1 if the stack's lock differs from packs and manifest; refuses releases that nothing names."""
    stacks.refuse_idle()
    stack = stacks.named(name)
    current = lock_file.current(Store(), stack, upstream)
    rows = lock_file.differences(lock_file.read(stack), current)
    if not rows and stack.lock.read_text() != lock_file.render(current, stack):
        rows = ["titles or layout differ"]
    for row in rows:
        typer.echo(f"(lock, packs) {row}")
    remedy = lock_file.write_command(stack)
    typer.echo("lock check: " + (f"{len(rows)} differences; fix: {remedy}" if rows else "clean"))
    raise typer.Exit(Exit.CONTRADICTED if rows else Exit.OK)


@app.command()
def table(name: Named = stacks.DEFAULT, upstream: Clone = None) -> None:
    """Print each pack's worth on the stack: needed, gone, absent, conflicting, untried or held."""
    typer.echo(worth.table(overlay.standings(Store(), stacks.named(name), upstream)))


@app.command()
def page(upstream: Clone = None) -> None:
    """Write docs/stacks.md: every stack with its table."""
    store = Store()
    tables = [(stack, overlay.standings(store, stack, upstream)) for stack in stacks.load().values()]
    write_atomic(schema.ROOT / "docs" / "stacks.md", worth.page(tables).encode())


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
