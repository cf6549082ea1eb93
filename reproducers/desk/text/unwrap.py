"""Markdown with one line a paragraph: GitHub shows each newline of an issue, pull request or comment as a break."""

from __future__ import annotations

from functools import cache, lru_cache

from markdown_it import MarkdownIt

BREAKS = ("  ", "\\")  # at a line's end they ask for a break, and keep it


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


@lru_cache(maxsize=256)
def unwrap(text: str) -> str:
    """The text with the lines of each paragraph, in lists and quotes too, joined; all else stays.

    A break that is asked for, by two spaces or a backslash at the end of a line, stays.
    """
    lines = text.split("\n")
    for paragraph in reversed([token for token in _parser().parse(text) if token.type == "inline"]):
        first, last = paragraph.map or (0, 0)
        content = paragraph.content.split("\n")
        if len(content) == last - first > 1:
            lines[first:last] = _joined(lines[first:last], content)
    return "\n".join(lines)


def _joined(lines: list[str], content: list[str]) -> list[str]:
    """A paragraph's lines joined behind the marks of its list or quote; ``content`` lacks the marks."""
    done = [lines[0]]
    for before, line, inner in zip(lines, lines[1:], content[1:], strict=False):
        if before.endswith(BREAKS):
            done.append(line)
        else:
            done[-1] = f"{done[-1].rstrip()} {inner.lstrip()}"
    return done
