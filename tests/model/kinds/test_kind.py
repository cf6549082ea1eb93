"""Windows that queries see, and what a backward pass computes of products."""

import math

import pytest

from model.definition.flops import Mean
from model.kinds.kind import Products, windows
from model.profile.work import Documents


@pytest.mark.parametrize("ratio", [1, 3, 4, 128])
@pytest.mark.parametrize("most", [1, 2, 7, math.inf])
def test_windows_are_those_that_end_at_the_query_or_before(ratio, most):
    for tokens in (1, 2, 3, 4, 11, 127, 128, 300):
        counted = sum(min(most, sum(last <= s for last in range(ratio, s + 1, ratio))) for s in range(1, tokens + 1))
        assert windows(tokens, ratio, most) == counted
        assert Mean(tokens).windows(ratio, most) == counted / tokens
        assert Documents({tokens: 3}).windows(ratio, most) == 3 * counted
        assert ratio > 1 or Documents({tokens: 2}).keys(most) == 2 * counted


def test_the_backward_pass_of_products():
    assert [Products("", 1.0, **how).backwards for how in ({}, {"detached": True}, {"once": True})] == [2, 1, 0]
