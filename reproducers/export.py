"""Write reproducer and probe as one file, which a maintainer runs on any tree without this repository.

``python -m reproducers.export pack09 -o pack09.py``: the PEP 723 header, the docstring, how to run it, ``minimal()``,
the reproducer's own code, then what it uses of the probe, as plain code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchlane.base import disk
from patchlane.base.files import write_atomic
from reproducers.desk import unwritten
from reproducers.desk.attachment.export import render
from reproducers.record.schema import load_named

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    name: Annotated[str, typer.Argument(metavar="PACK", help="pack05, 05 or 5")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file to write (default: stdout)")] = None,
) -> None:
    """Write the pack's reproducer as one self-contained Python file."""
    (pack,) = load_named([name])
    unwritten.refuse([pack], ["reproducer.py"])
    text = render(pack)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomic(disk.usable_file(output, "-o FILE names another file"), text.encode())
    typer.echo(f"{output or pack.id}: {text.count(chr(10))} lines", err=True)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
