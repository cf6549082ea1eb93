"""A text as GitHub's own Markdown parser sees it: blocks with their lines, links, and the prose without its code."""

from __future__ import annotations

import html
import re
from functools import cached_property

from patchlane.base.errors import CannotTestHere

BLOCK = re.compile(r'<(pre|table)\b[^>]*data-sourcepos="(\d+):\d+-(\d+):\d+"')
SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:[^`\n]|\n(?!\s*\n)|`(?!\1))+?)(?<!`)\1(?!`)")
CODE = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)


def parse(markdown: str) -> str:
    """The HTML that GitHub makes of a text in an issue: each newline is a break, and each block names its lines.

    Raises CannotTestHere without the parser.
    """
    try:
        import cmarkgfm
        from cmarkgfm.cmark import Options
    except ImportError as error:
        raise CannotTestHere("cmarkgfm, GitHub's Markdown parser, is not installed", "pip install cmarkgfm") from error
    options = Options.CMARK_OPT_SOURCEPOS | Options.CMARK_OPT_HARDBREAKS
    page: str = cmarkgfm.github_flavored_markdown_to_html(markdown, options=options)
    return page


def without_spans(text: str) -> str:
    """The text with its code spans blanked; lines and columns stay."""
    return SPAN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


class Text:
    """A Markdown text and its HTML. Lines count from 1."""

    def __init__(self, markdown: str) -> None:
        self.markdown = markdown
        self.lines = markdown.splitlines()

    @cached_property
    def html(self) -> str:
        return parse(self.markdown)

    def blocks(self, tag: str) -> list[tuple[int, int]]:
        """(first line, last line) of each ``pre`` or ``table``."""
        return [(int(m[2]), int(m[3])) for m in BLOCK.finditer(self.html) if m[1] == tag]

    @cached_property
    def breaks(self) -> list[str]:
        """The words before each newline that GitHub shows as a break; a typed <br> ends no line."""
        rows = [part.rpartition("\n")[2] for part in self.html.split("<br />\n")[:-1]]
        return [word[1] for row in rows if (word := re.search(r"([^\s<>]+)(?:</\w+>)*\Z", row))]

    @cached_property
    def outside(self) -> list[str]:
        """The lines; those of code blocks are empty."""
        code = {number for first, last in self.blocks("pre") for number in range(first, last + 1)}
        return ["" if number in code else line for number, line in enumerate(self.lines, 1)]

    @cached_property
    def prose(self) -> str:
        """The text with code blocks and code spans blanked; lines stay."""
        return without_spans("\n".join(self.outside))

    @cached_property
    def links(self) -> list[str]:
        """The targets of links and images, each once, in order."""
        return list(
            dict.fromkeys(html.unescape(href) for href in re.findall(r'<(?:a href|img src)="([^"]*)"', self.html))
        )

    @cached_property
    def shown(self) -> str:
        """The text that a reader sees outside code."""
        return html.unescape(re.sub(r"<[^>]*>", "", CODE.sub(" ", self.html)))
