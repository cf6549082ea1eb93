"""Run tasks of lm-evaluation-harness on a checkpoint: ``python -m model.evaluate build/train --tasks hellaswag``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from model.evaluation import opening, tasks
from model.patched import stacks
from reproducers.base import cli
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    checkpoint: Annotated[Path, typer.Argument(help="a run's folder, of which the newest checkpoint is taken, or one")],
    task: Annotated[list[str], typer.Option("--tasks", help="a task's name, or the YAML file of one")],
    include_path: Annotated[list[Path] | None, typer.Option(help="a folder of further tasks")] = None,
    data: Annotated[Path | None, typer.Option(help="a dataset of the run, for a checkpoint of weights alone")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="the tokenizers JSON file, where text is not bytes")] = None,
    stack: Annotated[str, typer.Option(help="a stack of model/stacks.yaml: whose upstream code")] = stacks.DEFAULT,
    upstream: Annotated[Path | None, typer.Option(help="the clone to take a stack's commit from")] = None,
) -> None:
    """Run tasks of lm-evaluation-harness, which read likelihoods, on one process; write results beside the run."""
    tasks.require()
    found = opening.opened(checkpoint, stacks.named(stack), upstream, data, tokenizer)
    names = [name for several in task for name in several.split(",")]
    evaluation = tasks.run(found, names, include_path or [])
    table = Table("task", "metric", "value", "standard error", title=escape(f"{evaluation.size}, {found.path.name}"))
    for row in tasks.rows(evaluation):
        table.add_row(*map(escape, row))
    cli.console(width=None if sys.stdout.isatty() else 120).print(table)
    print(tasks.keep(found.path, evaluation))


if __name__ == "__main__":
    guarded(app)
