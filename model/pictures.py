"""Draw loss.png and throughput.png of a run, from its metrics.jsonl: ``python -m model.pictures RUN``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.reports.pictures import draw
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="the run's directory")],
    log: Annotated[bool, typer.Option("--log", help="logarithmic loss axis")] = False,
) -> None:
    """Draw loss.png, throughput.png and, of diagnosed steps, diagnosis.png into the run's directory."""
    for path in draw(run, log):
        print(path)


if __name__ == "__main__":
    guarded(app)
