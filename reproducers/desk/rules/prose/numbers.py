"""Each typed number is in a receipt or in the pack's own files."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from decimal import Decimal

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.prose.constants import measured, ordered, written
from reproducers.desk.rules.prose.markdown import without_spans
from reproducers.desk.rules.registry import Breach, Skip, rule

MEND = 'name it, {{ measured("LANE", "ARM", "CHECK") }}, or take it out'
# These claim nothing: link targets, #123, full and short SHAs, versions, dotted names and file positions.
OTHER = re.compile(
    r"\]\([^)]*\)|https?://\S+|#\d+|\b(?=\w*\d)[0-9a-f]{7,40}\b|\bv?\d+(?:\.\d+){2,}[\w.]*|\b\d+\.x\b"
    r"|\b(?:python|torch|triton|numpy|sm|CUDA|tilelang|main|L)[ _-]?\d[\w.]*|\b\d+(?:\.\d+)*\.(?:post|rc|dev)\d+"
)
# A unit makes a number a measurement: factors bring each to the first of its kind.
UNITS: dict[str, tuple[str, float]] = {
    "ns": ("s", 1e-9),
    "us": ("s", 1e-6),
    "µs": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "min": ("s", 60.0),
    "bytes": ("B", 1.0),
    "B": ("B", 1.0),
    "KB": ("B", 1e3),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "KiB": ("B", 2**10),
    "MiB": ("B", 2**20),
    "GiB": ("B", 2**30),
    "TFLOP/s": ("FLOP/s", 1.0),
    "tok/s": ("tok/s", 1.0),
    "tokens/s": ("tok/s", 1.0),
    "%": ("", 0.01),
    "x": ("", 1.0),
    "times": ("", 1.0),
}
_NAMES = "|".join(map(re.escape, sorted(UNITS, key=len, reverse=True)))
NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z]-)(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
    rf"(?:\s?({_NAMES})(?![\w/])(?!\s?\d)|(?!\w|\.\d|,\d{{3}}))"
)


def prose(source: str) -> str:
    """A jinja2 template's own words: statements, expressions and code blanked, lines and columns kept."""
    from jinja2 import Environment, TemplateError

    try:
        tokens = list(Environment().lex(source))
    except TemplateError:  # receipt-claim reports it
        return ""
    kept = "".join(v if kind == "data" else re.sub(r"[^\n]", " ", v) for _, kind, v in tokens)
    fenced = re.sub(r"(?ms)^(`{3,}|~{3,}).*?^\1", _blank, kept)
    return without_spans(re.sub(r"(?m)(?<=\n\n)(?: {4}\S.*\n)+", _blank, fenced))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def claims(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, number, unit) of each number that claims something; the unit is empty for a count or a size."""
    text = OTHER.sub(_blank, text)
    for match in NUMBER.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1], match[2] or ""


def agrees(number: str, unit: str, values: list[tuple[float, str]]) -> bool:
    """Whether a typed number equals one of the (value, unit) pairs, to the digits given."""
    typed = Decimal(number.replace(",", ""))
    step = 10.0 ** int(typed.as_tuple().exponent)  # one in the last digit given
    kind, factor = UNITS.get(unit, ("", 1.0))
    for value, has in values:
        other, scale = UNITS.get(has, ("", 1.0))
        if kind == other and abs(value * scale / factor - float(typed)) <= 0.5 * step * (1 + 1e-9):
            return True
    return False


def _values(case: Case) -> tuple[list[tuple[float, str]], set[float]]:
    """((value, unit) of what receipts measured, numbers of the pack's own files)."""
    if "numbers" not in case.cache:
        case.cache["numbers"] = (measured(case), written(case))
    values: tuple[list[tuple[float, str]], set[float]] = case.cache["numbers"]
    return values


def _wrong(case: Case, text: str) -> Iterator[tuple[int, str, str]]:
    """(line, number, what is wrong) of each number that is in no receipt and no file."""
    receipts, own = _values(case)
    for line, number, unit in claims(text):
        exact = float(number.replace(",", "")) in own
        if unit or "e" in number:
            if not exact and not agrees(number, unit, receipts):
                amount = f"{number} {unit}".strip()
                yield line, number, f"{amount} is in no newest receipt of the pack"
        elif not exact and not agrees(number, "", receipts):
            yield line, number, f"{number} is neither in reproducer.py, pack.yaml or a patch nor in a newest receipt"


@rule("number-body", "no number in the text differs from its receipt")
def body(case: Case) -> Iterator[Breach | Skip]:
    for line, _, what in _wrong(case, prose(case.source)):
        yield Breach(case.body, line, what, MEND)


@rule("number-record", "no number in the title, the claim or the effect differs from its receipt")
def record(case: Case) -> Iterator[Breach | Skip]:
    from reproducers.record.schema import line_of

    for name, text in (("title", case.pack.title), ("claim", case.pack.claim), ("effect", case.pack.effect or "")):
        for *_, what in _wrong(case, text):
            yield Breach(case.record, line_of(case.record_text, (name,)), what, MEND)


@rule("number-log", "each number of a text stands in a log that is attached to it, and in a table nowhere else")
def logged(case: Case) -> Iterator[Breach | Skip]:
    told = {number for _, number, _ in _wrong(case, prose(case.source))}  # by number-body
    for form, text in case.texts.items():
        known = ordered(case.logs[form])
        for line, number, unit, cell in _stated(text.outside):
            if number not in told and not _stands(number, unit, known) and (cell or not _own(case, number)):
                row = text.lines[line - 1]
                what = f"{number} {unit}".strip() + f" is in no log that is attached to the {form}"
                yield Breach(*case.locate(row), what, "quote the receipt that has it, or take it out")


def _own(case: Case, number: str) -> bool:
    """Whether a number that is no measurement is one of the pack's own files."""
    return float(number.replace(",", "")) in _values(case)[1]


def _stated(lines: list[str]) -> Iterator[tuple[int, str, str, bool]]:
    """(line, number, unit, whether it is a table's cell) of each number that claims something.

    A table's head and the first cell of a row name what was measured.
    """
    for number, line in enumerate(lines, 1):
        cells = re.split(r"(?<!\\)\|", line)[2:] if line.startswith("|") else None
        if cells is not None and number < len(lines) and re.match(r"\|[ :|-]+$", lines[number]):
            continue
        for part in [line] if cells is None else cells:
            for _, found, unit in claims(without_spans(part)):
                if cells is not None or unit or "." in found or "e" in found:
                    yield number, found, unit, cells is not None


def _stands(number: str, unit: str, known: list[float]) -> bool:
    """Whether a number of a log, in any unit of the same kind, is this one as rounded in the text."""
    kind, factor = UNITS.get(unit, ("", 1.0))
    scales = {scale / factor for other, scale in UNITS.values() if other == kind} | {1.0}
    typed = Decimal(number.replace(",", ""))
    room = 0.5 * 10.0 ** int(typed.as_tuple().exponent) * (1 + 1e-9)
    for scale in scales:
        low, high = sorted(((float(typed) - room) / scale, (float(typed) + room) / scale))
        place = bisect.bisect_left(known, low)
        if place < len(known) and known[place] <= high:
            return True
    return False
