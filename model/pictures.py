"""Draw the pictures of a run, from its metrics.jsonl alone: ``python -m model.pictures RUN``.

Those of a kept run go to ``build/pictures/NAME``: what can be drawn is no receipt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.records.newest import RECEIPT
from model.reports.pictures import draw
from reproducers.base.cli import guarded
from reproducers.record.schema import ROOT

app = typer.Typer(add_completion=False)


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="the run's directory")],
    log: Annotated[bool, typer.Option("--log", help="logarithmic loss axis")] = False,
) -> None:
    """Draw loss.png, throughput.png and, of diagnosed steps, diagnosis.png into the run's directory."""
    kept = (run / RECEIPT).is_file()
    for path in draw(run, log, ROOT / "build" / "pictures" / run.resolve().name if kept else None):
        print(path)


if __name__ == "__main__":
    guarded(app)
