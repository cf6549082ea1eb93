"""Frozen dataclasses from JSON: every wrong field is refused with its place."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from patchlane.base import records


@dataclass(frozen=True)
class Inner:
    number: int
    word: Literal["a", "b"] | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    inner: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)
    text: str | None = None
    yes: bool = False


FULL = Outer("x", (Inner(1), Inner(2, "b")), {"n": Inner(3)}, "t", True)


def test_what_is_written_is_read_without_defaults():
    assert records.read(Outer, records.written(FULL)) == FULL
    assert records.written(Outer("x")) == {"name": "x"}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([], "(whole file)"),
        ({}, "name"),
        ({"name": 1}, "name"),
        ({"name": "x", "more": 1}, "more"),
        ({"name": "x", "yes": 1}, "yes"),
        ({"name": "x", "text": 1}, "text"),
        ({"name": "x", "inner": {}}, "inner"),
        ({"name": "x", "inner": [{"number": True}]}, "inner.0.number"),
        ({"name": "x", "inner": [{"number": 1.5}]}, "inner.0.number"),
        ({"name": "x", "named": {"n": {"number": 1, "word": "c"}}}, "named.n.word"),
        ({"name": "x", "named": {"n": {"number": 1, "word": ["a"]}}}, "named.n.word"),
    ],
)
def test_a_wrong_field_is_named(value, place):
    with pytest.raises(ValueError) as error:
        records.read(Outer, value)
    assert str(error.value).startswith(f"{place}: ")
