"""Export or import weights as safetensors: ``python -m model.weights export build/train weights``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="a run's folder, of which the newest checkpoint is taken, or one")],
    target: Annotated[Path, typer.Argument(help="a new folder")],
    form: Annotated[Literal["hf"], typer.Option("--format", help="a folder that transformers loads")] = "hf",
    tokenizer: Annotated[Path | None, typer.Option(help="the dataset's tokenizer file, if it has one")] = None,
) -> None:
    """Write a model that transformers loads: weights as safetensors, bit for bit, from whatever layout saved them."""
    from model.saved import weights

    config = weights.export(source, target, tell=typer.echo, tokenizer=tokenizer)
    typer.echo(f"{target}: {config.size.name} after {config.step} steps")
    if not (target / "tokenizer.json").exists():
        typer.echo(f"{target} has no tokenizer: --tokenizer FOLDER/tokenizer.json adds it", err=True)


@app.command("import")
def bring(
    source: Annotated[Path, typer.Argument(help="a folder that export made, or transformers of DeepSeek-V4")],
    run: Annotated[Path, typer.Argument(help="a new run's folder, to be given to model.train as --out")],
) -> None:
    """Make weights the step 0 of a new run, which trains from them in any layout."""
    from model.saved import reading, tensor_files, weights

    made = weights.bring(source, run)
    if not tensor_files.index(source).digests:
        typer.echo(f"{source} has no digests of its files: names, shapes and values were checked", err=True)
    if drawn := reading.progress(made).get("drawn"):
        typer.echo(f"{source} has no MTP: a run draws {len(drawn)} tensors as a new one does", err=True)
    typer.echo(made)


if __name__ == "__main__":
    guarded(app)
