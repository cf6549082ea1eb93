"""One line a paragraph, and nothing else touched."""

import pytest

from reproducers.desk.text.unwrap import unwrap


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("one\ntwo\nthree\n\nfour\nfive\n", "one two three\n\nfour five\n"),
        ("- one\n  two\n- [ ] box\n  more\n  - inner\n    rest\n", "- one two\n- [ ] box more\n  - inner rest\n"),
        ("1. one\n   two\nlazy\n", "1. one two lazy\n"),
        ("> one\n> two\nlazy\n", "> one two lazy\n"),
        ("a `b\nc` [d\ne](f)\n", "a `b c` [d e](f)\n"),
        ("# Head\ntext\nmore\n", "# Head\ntext more\n"),
    ],
)
def test_the_lines_of_a_paragraph_are_joined(text, wanted):
    assert unwrap(text) == wanted and unwrap(wanted) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "```python\na = 1\nb = 2\n```\n",
        "    a = 1\n    b = 2\n",
        "| a | b |\n|---|---|\n| c | d |\n| e | f |\n",
        "<!-- a\nb -->\n",
        "<details>\n<summary>log</summary>\n\ntext\n\n</details>\n",
        "asked for  \nby spaces\n",
        "asked for\\\nby a backslash\n",
        "",
    ],
)
def test_all_else_stays(text):
    assert unwrap(text) == text
