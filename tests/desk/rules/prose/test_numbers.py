"""Which numbers of a text state something, and when one agrees with a receipt."""

import pytest

from reproducers.desk.rules.prose.numbers import agrees, claims, prose

VALUES = [(0.03412, ""), (12.346, "ms"), (2.5, "GiB"), (7.0, "waits"), (3.068e-7, "")]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("takes 12.3 ms and 4ms", [("12.3", "ms"), ("4", "ms")]),
        ("16,384 tokens, 28 heads", [("16,384", ""), ("28", "")]),
        ("an error of 3e-7, 93%", [("3e-7", ""), ("93", "%")]),
        ("7x faster on 512 x 256", [("7", "x"), ("512", ""), ("256", "")]),
        ("in 0.19.0, 2.3.2.post1 and 10.x on sm_90a, bf16, #953, 027fa4aa, SHA-256", []),
        ("[L1](https://github.com/a/b#L1-L9) https://x.org/3", []),
        ("128/64 channels", [("128", ""), ("64", "")]),
    ],
)
def test_claims(text, numbers):
    assert [(number, unit) for _, number, unit in claims(text)] == numbers


@pytest.mark.parametrize(
    ("number", "unit", "holds"),
    [
        ("12.3", "ms", True),
        ("12.35", "ms", True),
        ("12.4", "ms", False),
        ("0.0123", "s", True),
        ("12346", "us", True),
        ("12.3", "s", False),
        ("2.5", "GiB", True),
        ("2560", "MiB", True),
        ("2.7", "GiB", False),
        ("3.4", "%", True),
        ("3.5", "%", False),
        ("7", "", True),
        ("7", "bytes", False),
        ("3.07e-7", "", True),
        ("3.1e-7", "", True),
        ("3.2e-7", "", False),
    ],
)
def test_a_number_agrees_to_the_digits_given(number, unit, holds):
    assert agrees(number, unit, VALUES) is holds


def test_prose_keeps_its_lines_and_drops_expressions_and_code():
    source = 'a 1\n{{ measured("cpu", "x", "2 of 3") }} {# 4 #}\n```\n5\n```\n\n    6\n\n`7 {{ x }}` 8\n'
    text = prose(source)
    assert [(line, number) for line, number, _ in claims(text)] == [(1, "1"), (9, "8")]
