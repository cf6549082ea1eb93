"""One release's answers as a table."""

from __future__ import annotations

from patchlane.base.wording import count
from patchlane.judged.answers import STATES, Answer
from patchlane.present.environment import Environment

HEAD = ("pack", "answer", "harm", "effect")


def text(answers: list[Answer], environment: Environment) -> str:
    """Bugs first, a line each: pack, answer, harm, and what it does to a run, or its title where nobody measured it."""
    order = [*STATES]
    rows = [(a.pack, a.state, a.harm or "-", a.effect or a.cost) for a in answers]
    rows.sort(key=lambda row: order.index(row[1]))
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in (HEAD, *rows)]
    numbers = [f"{number} {state}" for state in STATES if (number := sum(a.state == state for a in answers))]
    return "\n".join(
        [environment.label, *map(str.rstrip, lines), f"{count(len(answers), 'pack')}: {', '.join(numbers)}"]
    )
