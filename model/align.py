"""Compare the network that is trained with a reference, module by module: ``python -m model.align nam56r_tiny``.

NAM56R is compared with its formulas in fp64; DeepSeek-V4 with transformers' model, and with formulas in what that
lacks. Both sides have the same random weights, by a map of names, and read the same tokens. The table has outputs, sets
and choices, losses and gradients, and the first module over its limit: outputs in forward order, gradients in backward
order. Exit 1 where a row does not hold.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from model.alignment import aligned, table
from model.patched import stacks
from patchlane.base.exits import Exit
from reproducers.base import cli
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    size: Annotated[str, typer.Argument(help=f"one of {', '.join(aligned.OFFERED)}")],
    against: Annotated[
        str | None,
        typer.Option(help="the reference, transformers of DeepSeek-V4, formulas of NAM56R; none: the size's"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="of the first draw of weights and tokens")] = 0,
    draws: Annotated[
        int, typer.Option(min=1, max=1000, help="complete draws, with the size's constants and with such as are felt")
    ] = 2,
    tokens: Annotated[int, typer.Option(min=2, max=100_000, help="of each document")] = 51,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    stack: Annotated[str, typer.Option(help="a stack of model/stacks.yaml: whose upstream code")] = stacks.DEFAULT,
    upstream: Annotated[Path | None, typer.Option(help="the clone to take a stack's commit from")] = None,
) -> None:
    """Print how far the network of SIZE is from the reference, one row a module; on a CPU, in fp32."""
    found = aligned.align(size, against, stacks.named(stack), upstream, seed, draws, tokens)
    if as_json:
        print(json.dumps(found.said()))
    else:
        cli.console(width=None if sys.stdout.isatty() else 160).print(table.drawn(found))
        print(table.verdict(found))
    if not found.holds:
        raise typer.Exit(Exit.CONTRADICTED)


if __name__ == "__main__":
    guarded(app)
