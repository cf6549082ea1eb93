"""Small pieces of text that every room uses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# What a terminal obeys or that shows a text as another: control characters but for tab and line feed, marks that turn
# the direction of writing, invisible ones, halves of characters and what is none.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)
SHA = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
KEPT = 3  # times that a line is kept
WHOLE = ("[", "{", "Traceback ")  # what begins a check, a record, a traceback: kept however often it comes


def short(text: object) -> str:
    """The text with full commit hashes cut to 12 digits."""
    return SHA.sub(r"\1", str(text))


def printable(text: object) -> str:
    """The text of others as it may be printed: each character of UNPRINTABLE replaced by its picture or U+FFFD.

    A line's end stays one, also CR LF's; a terminal obeys nothing in it, and it reads as it is.
    """
    return UNPRINTABLE.sub(_picture, str(text).replace("\r\n", "\n"))


def _picture(match: re.Match[str]) -> str:
    return chr(0x2400 + ord(match[0])) if match[0] < " " else "\N{REPLACEMENT CHARACTER}"


def count(number: int, noun: str) -> str:
    """``1 guard``, ``2 guards``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def requirement_name(requirement: str) -> str:
    """The distribution that a requirement such as ``triton==3.6.0`` names."""
    name = re.match(r"[\w.-]+", requirement)
    return name[0] if name else requirement


class Repeats:
    """The lines that a program prints, in their order: a warning that comes a thousand times is to bury no result.

    An indented line has the fate of the one above it. A traceback is kept whole, its last line too.
    """

    def __init__(self) -> None:
        self._seen, self._kept, self._traceback = Counter[str](), True, False

    def keep(self, line: str) -> bool:
        """Whether this line, the next one printed, is to be kept."""
        if line[:1] in ("", " ", "\t"):
            return self._kept
        traceback, self._traceback = self._traceback, line.startswith("Traceback ")
        self._kept = True
        if not traceback and not line.startswith(WHOLE):
            self._seen[line] += 1
            self._kept = self._seen[line] <= KEPT
        return self._kept

    def rest(self) -> list[str]:
        """A line for each one that was not kept every time: how often it came again."""
        return [f"({n - KEPT:,} more times: {line})" for line, n in self._seen.items() if n > KEPT]


def collapsed(lines: Iterable[str]) -> list[str]:
    """The lines that are kept, then those that say what was not."""
    repeats = Repeats()
    kept = [line for line in lines if repeats.keep(line)]
    return kept + repeats.rest()
