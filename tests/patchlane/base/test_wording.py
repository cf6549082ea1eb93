"""Texts of others lose what a terminal obeys; a line that comes a thousand times buries nothing. Nothing else goes."""

import pytest

from patchlane.base.wording import KEPT, collapsed, printable

SAID = "CPU RNG state changed within GPU RNG context"
CHECK = "[   passed] sum: 0 (limit 0.1) vs 2"
TRACE = ["Traceback (most recent call last):", '  File "toy.py", line 3, in add', "ValueError: no"]
WARNED = ["toy.py:3: UserWarning: slow", "  warnings.warn("]
HOSTILE = {
    "clears the screen": "\x1b[2J",
    "writes the clipboard": "\x1b]52;c;aGk=\x07",
    "in one byte": "\x9b2J",
    "goes back": "a\rb",
    "erases": "a\x08\x7f",
    "turns the direction": "\u202egnp.exe",
    "isolates": "\u2066a\u2069",
    "hides": "a\u200bb\ufeff\u00adc",
    "tags": "\U000e0041",
    "half a character": "\ud800",
    "ends a line for others": "a\u2028b\x85c\x0bd\x0ce",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_terminal_obeys_nothing(text):
    shown = printable(text)
    assert shown != text and len(shown) == len(text) and shown == printable(shown)
    assert [letter for letter in shown if not letter.isprintable()] == []
    shown.encode()


def test_what_is_readable_stays():
    text = "tab\tline\nend – Grüße, 数字 😀 a\u0301 100 % \N{REPLACEMENT CHARACTER}"
    assert printable(text) == text
    assert printable("a\r\nb") == "a\nb" and printable(7) == "7"


def test_a_repeated_line_is_kept_a_few_times_and_counted():
    assert collapsed([SAID] * 1282 + [CHECK]) == [SAID] * KEPT + [CHECK, f"(1,279 more times: {SAID})"]
    assert collapsed(WARNED * 10)[: 2 * KEPT + 1] == [*WARNED * KEPT, f"({10 - KEPT} more times: {WARNED[0]})"]


def test_checks_records_and_tracebacks_are_kept_whole():
    for lines in ([CHECK] * 9, ['{"checks": []}'] * 9, TRACE * 9, [f"step {n}" for n in range(9)]):
        assert collapsed(lines) == lines
