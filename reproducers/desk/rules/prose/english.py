"""The text is plain English: script, words, no emoji. The rules are coarse, because they use no language model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule

SCRIPTS = ("LATIN", "GREEK", "MATHEMATICAL", "DOUBLE-STRUCK", "SCRIPT", "MICRO", "SUPERSCRIPT", "SUBSCRIPT", "MODIFIER")
STOP = set(
    re.findall(
        r"\w+",
        "the of and to a in is that it with as for on by are be not no at from or this which its an but than when they"
        " so has have one all also only each was were does do what where how if then there their out into before after"
        " same both such between more can cannot would will must any them these those we you up over under while"
        " because without within per other most some",
    )
)
FAR = re.compile(r"[^\x00-\x7f]")  # all but ASCII
EMOJI = re.compile("[\u2600-\u27bf\ufe0f\U0001f000-\U0010ffff]")
SHORTCODE = re.compile(r"(?<![\w:\[/]):[a-z][a-z_]+[a-z]:(?![\w:\]/])")
WORDS, SHARE = 15, 0.15  # a paragraph this long has this share of words that only hold English together


@rule("english-script", "only Latin and Greek letters and those of mathematics")
def script(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        for line in text.lines:
            far = FAR.findall(line)
            other = [c for c in far if unicodedata.category(c)[0] == "L" and not _known(c)]
            if other:
                yield Breach(
                    *case.locate(line.strip()), f"{''.join(other)[:20]!r} is not English", "write it in English"
                )


def _known(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith(SCRIPTS)


@rule("english-emoji", "no emoji")
def emoji(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        for line in text.prose.splitlines():
            if line in _of_forms():
                continue
            emojis = [*EMOJI.findall(line), *SHORTCODE.findall(line)]
            if emojis:
                yield Breach(*case.locate(line.strip()), f"{emojis[0]!r} is an emoji", "leave it out")


@cache
def _of_forms() -> frozenset[str]:
    """The lines of all forms; a form is its upstream's, so its emojis stay."""
    from reproducers.desk.text.render import FOLDER

    return frozenset(line for path in FOLDER.glob("*/*.j2") for line in path.read_text(encoding="utf-8").splitlines())


@rule("english-words", "every longer paragraph reads as English")
def words(case: Case) -> Iterator[Breach | Skip]:
    for text in case.texts.values():
        for paragraph in re.split(r"\n\s*\n", text.prose):
            plain = re.sub(r"\]\([^)]*\)|https?://\S+|(?m:^\s*[|#>].*$)|(?m:^- [^:\n]+: .*$)", " ", paragraph)
            lower = [word.lower() for word in re.findall(r"(?<![\w.-])[^\W\d_]+(?![\w-])", plain)]
            if len(lower) >= WORDS and sum(word in STOP for word in lower) < SHARE * len(lower):
                first = next(line for line in paragraph.splitlines() if line.strip())
                yield Breach(
                    *case.locate(first.strip()), "the paragraph does not read as English", "write it in English"
                )
