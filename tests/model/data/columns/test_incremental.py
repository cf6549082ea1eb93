"""The columns of a text that grows are those of the whole text."""

import random
import sysconfig
from pathlib import Path

import pytest

from model.data.columns.incremental import Columns
from model.data.columns.structure import DEFAULT_FIELDS, annotate

SOURCE = (Path(sysconfig.get_path("stdlib")) / "heapq.py").read_bytes()[:6000]
BROKEN = b"if A:\n  pass\n\\\n)\n x = 'open\n\n  # odd\n\tif x: 1.else\n forfor not\x80 not\n\r\n\ry='''\\"
NOISE = b"'\"#\\\n\r\t\f ()[]{}0xeE+j._asdefin\xc3\xa9"
DRAW = random.Random(0)
TEXTS = [SOURCE, BROKEN, *(bytes(DRAW.choices(NOISE, k=150)) for _ in range(200))]


def grown(text, language, longest):
    """The columns of a text in pieces of up to ``longest`` bytes, with looks ahead that are not taken."""
    columns, found, at = Columns(language), {name: [] for name in DEFAULT_FIELDS}, 0
    while at < len(text):
        piece = text[at : at + DRAW.randint(1, longest)]
        columns.peek(b"\x80)(\n  if'")
        for name, values in columns.push(piece).items():
            found[name] += values.tolist()
        at += len(piece)
    return found


@pytest.mark.parametrize("language", ["python", "text"])
@pytest.mark.parametrize("longest", [1, 7, 10_000])
def test_pieces_are_annotated_like_the_whole(language, longest):
    for text in TEXTS:
        whole = annotate(text, language)
        assert grown(text, language, longest) == {name: whole[name].tolist() for name in DEFAULT_FIELDS}, text


def test_a_look_ahead_is_what_would_come():
    columns = Columns("python")
    columns.push(b"if x:\n  de")
    peeked = columns.peek(b"f")
    assert {name: values.tolist() for name, values in peeked.items()} == {
        name: values.tolist() for name, values in columns.push(b"f").items()
    }
