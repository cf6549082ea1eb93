"""Train a tokenizer, build a token dataset, or show one.

    python -m model.data tokenizer --vocab 32768 --out FILE --source text PATH...
    python -m model.data build                     (the running Python's standard library, by bytes)
    python -m model.data build --source text --split '\\s*' --out DIR PATH...
    python -m model.data build --source parquet-text --tokenizer hf:FILE --eod TOKEN PATH...
    python -m model.data show DIR --verify

``--verify`` fails when a file is not the one that was built.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from model.data.source.corpus import Corpus

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=__doc__)
Sources = Literal["stdlib", "text", "jsonl", "parquet", "parquet-text"]
APPLIES = {
    "--key": ("jsonl", "parquet", "parquet-text"),
    "--split": ("text",),
    "--language": ("jsonl", "parquet-text"),
}


@app.command()
def build(
    paths: Annotated[list[Path] | None, typer.Argument(help="files or folders; none for --source stdlib")] = None,
    out: Annotated[Path | None, typer.Option(help="folder to make; default: the cache, named by content")] = None,
    source: Annotated[Sources, typer.Option(help="kind of PATHS")] = "stdlib",
    tokenizer: Annotated[str, typer.Option(help="byte, or hf:FILE for a tokenizers JSON file")] = "byte",
    eod: Annotated[str | None, typer.Option(help="with hf: the token that ends a document")] = None,
    valid_percent: Annotated[
        float, typer.Option(help="share of documents held out, by content hash; 100: a set to evaluate on")
    ] = 2.0,
    structure: Annotated[
        bool | None, typer.Option(help="per-token side columns; default: yes, except for parquet, which has no text")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes; the dataset does not depend on their number")] = 1,
    shard_gib: Annotated[float | None, typer.Option(help="GiB of tokens in a file; default: one file a split")] = None,
    key: Annotated[
        str | None, typer.Option(help="field or column of the text (text); parquet: of the tokens (tokens)")
    ] = None,
    split: Annotated[str | None, typer.Option(help=r"text: regex of separating lines, '\s*' for blank ones")] = None,
    language: Annotated[
        Literal["python", "text"] | None, typer.Option(help="jsonl, parquet-text: of the texts (text)")
    ] = None,
) -> None:
    """Write train and valid splits as Megatron indexed datasets, or reuse a dataset of the same inputs."""
    from model.data.build import build as run
    from model.data.encode import EncoderOptions
    from model.data.errors import DataError
    from model.data.show import Bar, table

    for name, value in {"--key": key, "--split": split, "--language": language}.items():
        if value is not None and source not in APPLIES[name]:
            raise DataError(f"{name} does not apply to --source {source}", f"leave {name} out")
    if structure and source == "parquet":
        raise DataError("--structure needs text, --source parquet has token ids only", "leave --structure out")
    corpus = _corpus(source, paths or [], key, split, language)
    if shard_gib is not None and not 0 < shard_gib < 2**30:  # nor NaN
        raise DataError(f"--shard-gib {shard_gib:g}", "--shard-gib 4 (above 0)")
    shard = None if shard_gib is None else max(int(shard_gib * 2**30), 1)
    options = EncoderOptions(tokenizer, eod, valid_percent, source != "parquet" if structure is None else structure)
    try:
        with Bar(corpus) as bar:
            built = run(corpus, options, out, workers=workers, shard_bytes=shard, progress=bar.advance)
    except OSError as error:
        raise DataError(f"{error.filename or 'the dataset'}: {error.strerror or error}") from error
    typer.echo(f"{'reused, same inputs' if built.reused else 'built'}: {built.folder}")
    table(built.record)


def _corpus(source: Sources, paths: list[Path], key: str | None, split: str | None, language: str | None) -> Corpus:
    from model.data.errors import DataError
    from model.data.source import readers
    from model.data.source.corpus import StandardLibrary

    if source == "text":
        return readers.TextFiles(paths, split)
    if source in ("jsonl", "parquet-text"):
        reader = readers.JsonLines if source == "jsonl" else readers.ParquetText
        return reader(paths, key or "text", "python" if language == "python" else "text")
    if source == "parquet":
        return readers.ParquetTokens(paths, key or "tokens")
    if paths:
        raise DataError(f"--source stdlib takes no PATHS, got {paths[0]}", f"--source text {paths[0]}")
    return StandardLibrary()


@app.command()
def tokenizer(
    out: Annotated[Path, typer.Option(help="the tokenizers JSON file to make")],
    vocab: Annotated[int, typer.Option(help="ids, the end of a document and 256 bytes among them")] = 32_768,
    paths: Annotated[list[Path] | None, typer.Argument(help="files or folders; none for --source stdlib")] = None,
    source: Annotated[Literal["stdlib", "text", "jsonl", "parquet-text"], typer.Option(help="of PATHS")] = "stdlib",
    valid_percent: Annotated[float, typer.Option(help="share of documents that build holds out: not read")] = 2.0,
    key: Annotated[str | None, typer.Option(help="jsonl, parquet-text: field or column of the text (text)")] = None,
    split: Annotated[str | None, typer.Option(help=r"text: regex of separating lines, '\s*' for blank ones")] = None,
) -> None:
    """Train a byte-level BPE tokenizer on a corpus."""
    from model.data import bpe
    from model.data.show import Bar
    from model.data.source.tokenizers import EOD

    corpus = _corpus(source, paths or [], key, split, None)
    with Bar(corpus) as bar:
        made = bpe.train(corpus, vocab, out, valid_percent, bar.advance)
    few = "" if made.vocab_size == vocab else f" (the corpus has no more pairs, {vocab:,} were asked)"
    typer.echo(f"{out}: {made.vocab_size:,} ids{few}, sha256 {made.sha256}")
    typer.echo(f"build a dataset by it: python -m model.data build --tokenizer hf:{out} --eod '{EOD}'")


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="DIR")],
    verify: Annotated[bool, typer.Option("--verify", help="read every file and compare its sha256")] = False,
) -> None:
    """Print a dataset's record; with --verify exit 1 if a file has changed since it was built."""
    from model.data.show import table
    from model.data.stored.dataset import damaged, read_record

    record = read_record(folder)
    table(record)
    if not verify:
        return
    bad = damaged(folder, record)
    for name in bad:
        typer.echo(f"changed since it was built: {folder / name}\n  fix: rm -r {folder}, and build again", err=True)
    typer.echo(f"{len(record.files) - len(bad)} of {len(record.files)} files are as built")
    raise typer.Exit(1 if bad else 0)


def main() -> None:
    from reproducers.base.cli import guarded

    guarded(app)


if __name__ == "__main__":
    main()
