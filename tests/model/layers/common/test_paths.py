"""Which implementation a layer runs: what is asked for or nothing, and every layer is named in the log."""

import logging

import pytest

from model.layers.common import paths
from model.layers.common.paths import Path
from reproducers.base.errors import CannotTestHere

ABLE = {"fast": "there is no GPU", "torch": None}


def test_auto_takes_the_best_that_works_and_says_what_better_ones_lack():
    assert paths.choose("5 dsa", "auto", ABLE) == Path("torch", "fast: there is no GPU")
    assert paths.choose("5 dsa", "auto", {"fast": None, "torch": None}) == Path("fast", "the best there is")


@pytest.mark.parametrize(
    ("requested", "able", "message"),
    [
        ("fast", ABLE, "fast was asked for and there is no GPU"),
        ("slow", ABLE, "has no path 'slow'"),
        ("auto", {"fast": "there is no GPU"}, "no path works here: fast: there is no GPU"),
    ],
)
def test_nothing_else_is_taken_for_what_was_asked(requested, able, message):
    with pytest.raises(CannotTestHere, match=message):
        paths.choose("5 dsa", requested, able)


def test_one_line_a_layer(caplog):
    torch, other = Path("torch", "asked for"), Path("flash", "the best there is")
    with caplog.at_level(logging.INFO, logger="model.paths"):
        paths.announce([("2", "MoE", torch), ("MTP 1", "MLA", other)])
    assert caplog.messages == ["layer 2, MoE: path torch, asked for", "layer MTP 1, MLA: path flash, the best there is"]
