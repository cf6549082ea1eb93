"""GitHub's own Markdown parser shows the text as it was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reproducers.desk.attachment.export import ISSUE_LIMIT
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule

FENCE = re.compile(r"^[\s>*+-]*(`{3,}|~{3,})(.*)$")
TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)(?=[\s/>])[^>]*>")
ALLOWED = ("details", "summary", "sub", "br")
RESIDUE = re.compile(r"\{\{[- ]|[- ]\}\}|\{%|\{#|%\}|(?<=\|) *(?:None|nan|Undefined) *(?=\|)")
URL = re.compile(r"https?://[^\s<>()\[\]|`\"]+[^\s<>()\[\]|`\".,;:!?']")


def _open(case: Case) -> Iterator[tuple[int, str]]:
    """(line, text) of each fence of ``body.md.j2`` that its block leaves open; in a form it swallows the rest."""
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(case.source.splitlines(), 1):
        fence = FENCE.match(line)
        if fence and opened and fence[1].startswith(opened[2]) and not fence[2].strip():
            opened = None
        elif fence and not opened:
            opened = (number, line.strip(), fence[1])
        elif "{% endblock" in line and opened:
            yield opened[:2]
            opened = None


@rule("gfm-fence", "every code fence is closed")
def fences(case: Case) -> Iterator[Breach | Skip]:
    for number, line in _open(case):
        what = f"the fence {line!r} is never closed"
        yield Breach(case.body, number, what, "close it with the same marks on their own line")


def _cells(row: str) -> int:
    inner = re.sub(r"^\s*\||(?<!\\)\|\s*$", "", row)
    return len(re.split(r"(?<!\\)\|", inner))


@rule("gfm-table", "every table is one to GitHub, each row with the columns of its head")
def tables(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        inside: set[int] = set()
        for first, last in text.blocks("table"):
            inside |= set(range(first, last + 1))
            columns = _cells(text.lines[first - 1])
            for number in range(first, last + 1):
                if _cells(text.lines[number - 1]) != columns:
                    yield _row(case, text.lines[number - 1], f"{_cells(text.lines[number - 1])} cells", f"{columns}")
        for number, line in enumerate(text.outside, 1):
            if line.lstrip().startswith("|") and number not in inside:
                yield _row(case, line, "no table to GitHub", "a head, a line of dashes, and no empty line between")


def _row(case: Case, line: str, fault: str, wanted: str) -> Breach:
    short = line.strip()[:60]
    return Breach(
        *case.locate(line.strip()), f"the row {short!r} has {fault}", f"give it {wanted}; a | in a cell is \\|"
    )


@rule("gfm-link", "every link of the source is a link to GitHub")
def links(case: Case) -> Iterator[Breach | Skip]:
    remedy = "[text](https://…) without spaces, the brackets closed"
    for text in case.texts.values():
        for match in re.finditer(r"\](?:\(|\s+\(https?:).{0,40}", text.shown):
            yield Breach(*case.locate(match[0].strip()), f"the link at {match[0][:40]!r} shows as text", remedy)
        known = {_bare(link) for link in text.links}
        for url in URL.findall(text.prose):
            if _bare(url) not in known and not any(link.startswith(_bare(url)) for link in known):
                yield Breach(*case.locate(url), f"{url} is in the source and is no link", remedy)


def _bare(url: str) -> str:
    return url.rstrip("/").replace("%20", " ")


@rule("gfm-residue", "nothing of the template is left, and no value is missing")
def residue(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        for line in text.outside:
            for match in RESIDUE.finditer(line):
                what = f"{match[0].strip()!r} is left of the template"
                yield Breach(*case.locate(line.strip()), what, "correct body.md.j2")


@rule("gfm-break", "no paragraph is broken into lines, as GitHub does at each newline")
def breaks(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        for word in text.breaks:
            yield Breach(*case.locate(word), f"the paragraph breaks after {word[:40]!r}", "take the break out")


@rule("gfm-html", "no raw HTML but details, summary, sub, br and comments, each closed")
def raw_html(case: Case) -> Iterator[Breach | Skip]:
    if any(_open(case)):
        return  # gfm-fence reports it; the form's own tags are inside the fence then
    for text in case.texts.values():
        opened: list[str] = []
        for match in TAG.finditer(text.prose):
            name = match[2].lower()
            if name not in ALLOWED:
                yield Breach(*case.locate(match[0]), f"raw HTML {match[0]!r}", "write Markdown, or code in backticks")
            elif name != "br":
                opened = opened[:-1] if match[1] and opened[-1:] == [name] else [*opened, match[1] + name]
        if opened:
            yield Breach(*case.locate(f"<{opened[0]}"), f"<{opened[0]}> is not paired", f"close it: </{opened[0]}>")


@rule("gfm-length", "GitHub takes the text whole")
def length(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        if len(text.markdown) >= ISSUE_LIMIT:
            what = f"{len(text.markdown)} characters, GitHub takes fewer than {ISSUE_LIMIT}"
            yield Breach(case.body, 1, what, "shorten it; attach what is long")
