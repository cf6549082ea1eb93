"""Print what a code, a state or any other word of the project means. ``python -m reproducers.explain 77``.

docs/exit-codes.md is ``python -m reproducers.explain --markdown``, docs/glossary.md the same with ``--glossary``,
docs/log.md with ``--log``.
"""

from __future__ import annotations

import difflib
import shlex
from typing import Annotated, NamedTuple

import typer

from patchlane.base.errors import PatchlaneError
from reproducers.base import verdicts as v
from reproducers.base.glossary import CODES_PAGE, GROUPS, WORDS_PAGE

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _plain(code: str) -> str:
    return code.strip().casefold().replace("_", " ")


class Definition(NamedTuple):
    """One row: a word, its kind and its meaning. ``next_step`` is empty if there is nothing to do."""

    kind: str
    code: str
    meaning: str
    next_step: str


def codes() -> list[Definition]:
    """Exit codes, verdicts and sentinels, in the order of their definition."""
    rows = [
        Definition("exit code", str(int(code)), v.EXIT_MEANING[code], v.EXIT_REMEDY[code]) for code in v.EXIT_MEANING
    ]
    rows += [Definition("verdict", word.value, v.VERDICT_MEANING[word], v.VERDICT_REMEDY[word]) for word in v.Verdict]
    sentinels = v.SENTINEL_MEANING.items()
    return rows + [Definition("sentinel", word, meaning, v.SENTINEL_REMEDY[word]) for word, meaning in sentinels]


def words() -> list[Definition]:
    """The glossary: states, terms, outcomes and the words of pack.yaml."""
    return [Definition(kind, name, *word) for kind, group in GROUPS.items() for name, word in group.items()]


def rules() -> list[Definition]:
    """The rules of lint; their modules are loaded only where no other word is meant."""
    from reproducers.desk.rules.engine import meanings

    return [Definition("rule of lint", *row, "python -m reproducers.lint PACK") for row in meanings().items()]


def find(code: str) -> list[Definition]:
    """The rows of ``code`` in any case, without a reason in brackets. Raises PatchlaneError if it has none."""
    wanted, every = _plain(code.partition("(")[0]), [*codes(), *words()]
    rows = [row for row in every if _plain(row.code) == wanted] or [r for r in rules() if _plain(r.code) == wanted]
    if not rows:
        near = difflib.get_close_matches(wanted, [_plain(row.code) for row in every], 1)
        guess = f"python -m reproducers.explain {shlex.quote(near[0])}, or " if near else ""
        guess += "python -m reproducers.explain, which prints all of them"
        raise PatchlaneError(f"unknown word {code!r}", guess)
    return rows


def text(rows: list[Definition]) -> str:
    """Each row as a paragraph."""
    return "".join(
        f"{r.code} ({r.kind})\n  means: {r.meaning}\n" + (f"  next:  {r.next_step}\n" if r.next_step else "")
        for r in rows
    )


def markdown(rows: list[Definition], preface: str = CODES_PAGE) -> str:
    """One table for each kind of code."""
    parts = [preface]
    for kind in dict.fromkeys(row.kind for row in rows):
        chosen = [row for row in rows if row.kind == kind]
        wide = any(row.next_step for row in chosen)
        table = [f"| {kind} | means |{' next |' if wide else ''}", f"|---|---|{'---|' if wide else ''}"]
        parts.append("\n".join([*table, *(_row(row, wide) for row in chosen)]) + "\n")
    return "\n".join(parts)


def _row(row: Definition, wide: bool) -> str:
    cells = (f"`{row.code}`", row.meaning, *((row.next_step or "–",) if wide else ()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


@app.command()
def main(
    code: Annotated[
        str | None, typer.Argument(metavar="WORD", help="77, PATCH_STALE, validated, lane; all of them when left out")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print docs/exit-codes.md")] = False,
    glossary: Annotated[bool, typer.Option("--glossary", help="print docs/glossary.md")] = False,
    tried: Annotated[bool, typer.Option("--log", help="print docs/log.md")] = False,
) -> None:
    """Print what a word means and what to do next."""
    if tried:
        from reproducers.studies import log  # no word asks for it

        typer.echo(log.page(log.read()), nl=False)
    elif glossary or as_markdown:
        typer.echo(markdown(words(), WORDS_PAGE) if glossary else markdown(codes()), nl=False)
    else:
        typer.echo(text(find(code) if code is not None else [*codes(), *words()]), nl=False)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
