"""A text tells the maintainer the expected behaviour, and names only threads of the maintainer's own project."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.prose.links import THREAD
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.record.schema import line_of

EXPECTED = re.compile(r"\{%-?\+?\s*block\s+expected\b[^%]*%\}(.*?)\{%-?\+?\s*endblock", re.S)
NAMING = re.compile(r"(?:Linked issue: |Fixes |Bug: )")  # lines that name the thread a text belongs to
WORDS = re.compile(r"\b(?:HEALTHY|BUG_REPRODUCED|FIX_VALIDATED|REPRODUCED_AND_FIXED)\b")


@rule("body-expected", "the text says in words what behaviour is expected")
def expected(case: Case) -> Iterator[Breach | Skip]:
    block = EXPECTED.search(case.source)
    if block is None or not block[1].strip():
        yield Breach(
            case.body, 1, "there is no block expected", "{% block expected %}What should happen.{% endblock %}"
        )
    elif word := WORDS.search(block[1]):
        line = case.source.count("\n", 0, block.start(1) + word.start()) + 1
        yield Breach(case.body, line, f"{word[0]} says nothing of the software", "say what the software should do")


@rule("foreign-thread", "no thread of another repository is named as the one that the pack belongs to")
def foreign(case: Case) -> Iterator[Breach | Skip]:
    from reproducers.desk.patches.fields import bug

    filing = line_of(case.record_text, ("upstream_state", "threads"))
    named = [(case.record, filing, f"Bug: {bug(case.pack)}")]
    for text in case.texts.values():
        named += [(*case.locate(line), line) for line in text.lines if NAMING.match(line)]
    for path, number, line in named:
        for url in re.findall(r"https://github\.com/\S+?(?=[)\s]|$)", line):
            if THREAD.match(url.removeprefix("https://github.com")) and not case.pack.owns(url):
                yield Breach(path, number, f"{url} is not of {case.pack.upstream.repo}", "name its own thread, or none")
