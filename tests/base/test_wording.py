"""Texts of others lose what a terminal obeys, and nothing else."""

import pytest

from reproducers.base.wording import printable

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
