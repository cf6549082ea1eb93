"""Generate text from a trained model: ``python -m model.generate build/train --prompt 'def main('``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from model.data.stored import dataset
from model.generation.sampling import Sampling
from model.generation.shown import stage
from model.saved import opened as saved
from patchlane.base.errors import PatchlaneError
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    source: Annotated[Path, typer.Argument(help="a run's folder, a checkpoint's, or exported weights")],
    prompt: Annotated[str, typer.Option(help="what the document begins with")],
    tokens: Annotated[int, typer.Option(min=1, help="tokens at most; the end of the document may come before")] = 128,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token; above it one is drawn")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="draw from that many of the likeliest")] = None,
    top_p: Annotated[float | None, typer.Option(help="draw from the likeliest that have this share together")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="of the draws")] = 0,
    bf16: Annotated[bool | None, typer.Option("--bf16/--fp32", help="default: as the weights are kept")] = None,
    data: Annotated[Path | None, typer.Option(help="the run's dataset, for weights that do not say how it is")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="the dataset's tokenizer file, if it has one")] = None,
    language: Annotated[
        Literal["python", "text"] | None, typer.Option(help="of the text, where the dataset has both")
    ] = None,
) -> None:
    """Print PROMPT and what the model writes after it, up to the end of the document or --tokens.

    On a GPU where there is one.
    """
    by = Sampling(temperature, top_k, top_p)
    if not prompt:
        raise PatchlaneError("the prompt is empty", "--prompt TEXT, with which the document begins")
    record = dataset.read_record(data) if data else None
    with stage("comparing digests"):
        found = saved.opened(source)
    from model.generation import loading  # torch, which what is refused until here need not wait for
    from model.generation.loop import Writer
    from model.generation.text import Text

    kept = found.tokenizer or (dataset.tokenizer(data) if data else None)
    encoding = saved.encoding(found.path, found.size, found.encoding, found.dataset, record)
    text = Text(
        os.fsencode(prompt), encoding.open(tokenizer, kept), found.size, encoding.fields, language or encoding.language
    )
    with stage("reading weights", found.size_bytes) as advance:
        network = loading.network(found, bf16, advance)
    writer = Writer(network, text, encoding.tokenizer, tokens)
    with stage("reading the prompt", len(text.ids)) as advance:
        logits = writer.read(advance)
    began = time.perf_counter()
    typer.echo(os.fsencode(prompt), nl=False)
    for piece in writer.write(logits, by, seed):
        typer.echo(piece, nl=False)
    seconds, ended = time.perf_counter() - began, writer.ended
    typer.echo()
    why = "the document ended" if ended.by_eod else f"stopped after --tokens {tokens}"
    typer.echo(f"{why}: {ended.tokens} tokens, {ended.tokens / seconds:.0f} a second", err=True)


if __name__ == "__main__":
    guarded(app)
