"""Small pieces of text that every room uses."""

from __future__ import annotations

import re

# What a terminal obeys or that shows a text as another: control characters but for tab and line feed, marks that turn
# the direction of writing, invisible ones, halves of characters and what is none.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)
SHA = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")


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
