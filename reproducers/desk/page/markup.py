"""Texts of the report page as safe HTML: Markdown as GitHub reads it, and highlighted patches."""

from __future__ import annotations

import functools
import html
from typing import TYPE_CHECKING

from markupsafe import Markup

from patchlane.base.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markdown_it import MarkdownIt
    from markdown_it.token import Token

TAGS = {
    "a",
    "blockquote",
    "br",
    "code",
    "dd",
    "del",
    "details",
    "dl",
    "dt",
    "em",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "kbd",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strong",
    "sub",
    "summary",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
}
ATTRIBUTES = {"a": {"href"}, "code": {"class"}, "span": {"class"}, "ol": {"start"}}
# a wide table scrolls inside its own box, which the keyboard must reach
SCROLL = '<div class="scroll" role="group" aria-label="Table" tabindex="0"><table>'


def highlight(code: str, language: str) -> Markup:
    """The code as HTML with Pygments' short class names, plain if Pygments has no lexer for the language."""
    import pygments
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    code = printable(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return Markup(html.escape(code))
    return Markup(pygments.highlight(code, lexer, HtmlFormatter(nowrap=True)))


def markdown(text: str, base: int) -> Markup:
    """GitHub-flavoured Markdown as sanitised HTML; its headings begin at level ``base`` and skip none.

    Only links to public pages stay. Pictures and everything that loads or runs are dropped.
    """
    import nh3

    parser = _parser()
    tokens = parser.parse(printable(text))
    _renumber(tokens, base)
    for token in tokens:
        token.children = list(_linked(token.children)) if token.children else token.children
    raw = parser.renderer.render(tokens, parser.options, {})
    safe = nh3.clean(raw, tags=TAGS, attributes=ATTRIBUTES, url_schemes={"https", "http"}, link_rel="noopener")
    safe = safe.replace("<table>", SCROLL).replace("</table>", "</table></div>")
    # an empty corner cell heads nothing
    return Markup(safe.replace("<th></th>", "<td></td>").replace("<th>", '<th scope="col">'))


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("gfm-like", {"highlight": lambda code, language, _: str(highlight(code, language))})
    # GitHub links "https://…" but neither "core.py" nor "name@host"
    assert parser.linkify is not None
    parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})
    return parser


def _renumber(tokens: list[Token], base: int) -> None:
    levels: list[int] = []
    for token in tokens:
        if token.type == "heading_open":
            level = int(token.tag[1])
            while levels and levels[-1] >= level:
                levels.pop()
            levels.append(level)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(base + len(levels) - 1, 6)}"


def _linked(tokens: Iterable[Token]) -> Iterable[Token]:
    """The tokens without links into the repository, because the site does not hold its files."""
    dropped = False
    for token in tokens:
        if token.type == "link_open":
            dropped = not str(token.attrGet("href")).startswith(("https://", "http://"))
        if not (dropped and token.type in ("link_open", "link_close")):
            yield token
