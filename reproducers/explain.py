"""What a code, a state or any other word of the project means. ``python -m reproducers.explain 77``.

docs/exit-codes.md is ``python -m reproducers.explain --markdown``, docs/glossary.md the same with ``--glossary``.
"""

from __future__ import annotations

from typing import Annotated

import typer

from reproducers.base.meanings import GLOSSARY, codes, find, markdown, text, words

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    code: Annotated[
        str | None, typer.Argument(metavar="WORD", help="77, PATCH_STALE, validated, lane; all of them when left out")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print docs/exit-codes.md")] = False,
    glossary: Annotated[bool, typer.Option("--glossary", help="print docs/glossary.md")] = False,
) -> None:
    """Print what a word means and what to do next."""
    if glossary:
        typer.echo(markdown(words(), GLOSSARY), nl=False)
    elif as_markdown:
        typer.echo(markdown(codes()), nl=False)
    else:
        typer.echo(text(find(code) if code is not None else [*codes(), *words()]), nl=False)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
