"""The hash of the n-gram tables by hand."""

from itertools import islice

from model.alignment.nam56r.formulas import ends
from model.families.nam56r import TINY
from model.kinds.ends import Ngram


def test_outputs_are_those_that_are_published_of_seed_0_but_for_the_first():
    assert [*islice(ends.splitmix64(), 2)] == [0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_row_is_of_the_last_tokens_of_its_document():
    size = TINY.model_copy(update={"ngram": Ngram(orders=(2,), heads=1, rows=100, dim=4)})
    draws = ends.splitmix64()
    first, second, bias = (next(draws) for _ in range(3))
    first, second, bias = first >> 20 | 1, second >> 20 | 1, bias >> 2
    due = [(bias ^ 7 * first ^ size.vocab * second) % 101, (bias ^ 9 * first ^ 7 * second) % 101]
    assert ends.hash_rows([7, 9], size) == [[row] for row in due]
