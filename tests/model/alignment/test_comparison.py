"""Differences, choices, ties, and the worst of several draws."""

import math

import pytest
import torch

from model.alignment.comparison import Judge, Row, compared, merged, relative


def judge():
    rows = []
    return Judge("reference", 7, rows), rows


def chosen(*tokens, count=4):
    found = torch.zeros(len(tokens), count, dtype=torch.bool)
    for token, numbers in enumerate(tokens):
        found[token, list(numbers)] = True
    return found


def test_a_difference_is_a_part_of_the_references_largest_value():
    a, b = torch.tensor([1.0, -3.5]), torch.tensor([1.0, -4.0])
    assert relative(a, b) == 0.125 and relative(b, a) == 0.5 / 3.5
    assert relative(a, b, least=8.0) == 0.0625
    assert relative(b, b) == relative(torch.zeros(2), torch.zeros(2)) == relative(None, None) == 0
    assert relative(a, torch.zeros(2)) == relative(a, None) == relative(None, a) == math.inf
    assert relative(a, torch.zeros(3)) == math.inf
    assert relative(torch.zeros(0), torch.zeros(0)) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.1e-5])
def test_what_is_no_number_and_what_is_above_the_limit_differ(value):
    by, rows = judge()
    by.values("1", "core", {"": (torch.tensor([1.0, 1.0]) + torch.tensor([0.0, value]), torch.ones(2))})
    assert rows[0].verdict == "differs"
    by.values("1", "core", {"": (torch.tensor([1.0, 1 + 9e-6]), torch.ones(2))})
    assert rows[1].verdict == "holds"


def test_the_row_names_the_worst_tensor():
    by, rows = judge()
    pairs = {"a": (torch.ones(1), torch.ones(1)), "b": (torch.ones(1), 2 * torch.ones(1))}
    by.gradients("1", "mHC", pairs, least=0.0)
    assert (rows[0].where, rows[0].off, rows[0].limit) == ("b", 0.5, 1e-4)


def test_choices_that_scores_tell_apart_differ_at_their_first_token():
    scores = torch.tensor([[4.0, 3, 2, 1]] * 3)
    by, rows = judge()
    by.choices("2", "top-k", chosen([0, 1], [0, 2], [0, 3]), chosen([0, 1], [0, 1], [0, 1]), scores)
    assert (rows[0].off, rows[0].where, rows[0].ties, rows[0].verdict) == (2, "token 1", (), "differs")
    by.values("2", "next", {"": (torch.ones(1), torch.ones(1))})
    assert rows[1].draws == 1  # an error ends nothing


def test_a_tie_is_told_by_its_margin_and_ends_the_draw():
    scores = torch.tensor([[4.0, 3, 3 - 4e-6, 1]])
    by, rows = judge()
    by.choices("2", "top-k", chosen([0, 2]), chosen([0, 1]), scores)
    by.values("2", "next", {"": (torch.zeros(1), torch.ones(1))})
    by.choices("2", "more", chosen([0]), chosen([1]), None)
    tie = rows[0].ties[0]
    assert (rows[0].verdict, tie.seed, tie.token) == ("holds", 7, 0)
    assert tie.margin == pytest.approx(1e-6, rel=0.1)
    assert [row.verdict for row in rows[1:]] == ["not compared"] * 2


def test_a_tie_that_the_reference_followed_is_told_and_ends_nothing():
    scores = torch.tensor([[4.0, 3, 3 - 4e-6, 1]])
    by, rows = judge()
    by.choices("2", "top-k", chosen([0, 2]), chosen([0, 1]), scores, followed=True)
    by.values("2", "next", {"": (torch.zeros(1), torch.ones(1))})
    assert len(rows[0].ties) == 1 and [row.verdict for row in rows] == ["holds", "differs"]


@pytest.mark.parametrize(
    ("ours", "scores"),
    [
        ([0, 2], None),  # by a table: there is no tie
        ([0], torch.tensor([[4.0, 3, 3, 1]])),  # fewer
        ([0, 2, 3], torch.tensor([[4.0, 3, 3, 3]])),  # more
        ([2, 3], torch.tensor([[4.0, 3, 3, 3]])),  # one of two
        ([0, 2], torch.tensor([[4.0, 3, -math.inf, 1]])),  # of what it does not see
        ([0, 2], torch.tensor([[4.0, 3, 2.999, 1]])),
        ([0, 2], torch.tensor([[4.0, 3, 3.001, 1]])),  # theirs is not what its scores say
    ],
)
def test_what_is_no_tie(ours, scores):
    assert compared(chosen(ours), chosen([0, 1]), scores) == ([0], [])


def test_another_count_of_tokens_or_things_differs_everywhere():
    assert compared(chosen([0]), chosen([0], [1]), None) == ([0, 1], [])


def test_a_value_at_its_bound_leaves_gradients_out():
    by, rows = judge()
    by.values("1", "experts", {"": (torch.ones(1), torch.ones(1))})
    by.near([0.5, 1e-6])
    by.values("1", "next", {"": (torch.ones(1), torch.ones(1))})
    by.gradients("1", "experts", {"w": (torch.ones(1), torch.ones(1))}, 0.0)
    assert [(tie.token, tie.margin) for tie in rows[0].ties] == [(1, 1e-6)]
    assert [row.draws for row in rows] == [1, 1, 0]
    by, rows = judge()
    by.values("1", "experts", {"": (torch.ones(1), torch.ones(1))})
    by.near([0.5, 1e-5])
    by.gradients("1", "experts", {"w": (torch.ones(1), torch.ones(1))}, 0.0)
    assert [row.draws for row in rows] == [1, 1] and rows[0].ties == ()


def test_bits_are_values_and_dtypes():
    by, rows = judge()
    by.bits("", "names", {"a": (torch.ones(1), torch.ones(1)), "b": (torch.ones(1), torch.ones(1).double())})
    assert (rows[0].off, rows[0].where, rows[0].verdict) == (1, "b", "differs")


def row(off, draws=1, module="core", where=""):
    return Row(layer="1", module=module, kind="values", against="r", limit=1e-5, off=off, draws=draws, where=where)


def test_the_worst_of_all_draws_is_kept_and_those_that_compared_are_counted():
    found = merged([[row(1e-6), row(2e-6, module="next")], [row(3e-6, where="b"), row(0, 0, "next")], [row(2e-6)]])
    assert [(one.module, one.off, one.draws, one.where) for one in found] == [
        ("core", 3e-6, 3, "b"),
        ("next", 2e-6, 1, ""),
    ]
    assert merged([[row(0, 0)], [row(1e-6)]])[0].off == 1e-6
    assert math.isnan(merged([[row(1e-6)], [row(math.nan)], [row(1e-6)]])[0].off)
    assert merged([[row(0, 0)], [row(0, 0)]])[0].verdict == "not compared"
