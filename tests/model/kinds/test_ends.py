"""The rows of the n-gram hash tables."""

import pytest

from model.families.nam56r import NAM56R
from model.kinds.ends import prime_sizes


def test_the_hash_tables_rows():
    table = NAM56R.entrance.counts()["n-gram hash embedding"] - 256 * NAM56R.hidden
    assert table == 7_998_862 * NAM56R.ngram.dim


def sieve(low, count):
    """The first ``count`` primes from ``low`` on, by Eratosthenes."""
    limit = 2 * low + 200
    prime = bytearray([0, 0]) + bytearray([1]) * (limit - 2)
    for n in range(2, limit):
        if prime[n]:
            prime[2 * n :: n] = bytes(len(range(2 * n, limit, n)))
    return tuple([n for n in range(low, limit) if prime[n]][:count])


@pytest.mark.parametrize("rows", [1, 9, 25, 120, 2_000, 2_500])
def test_the_first_primes_near_the_rows(rows):
    assert prime_sizes(rows, 16) == sieve(max(2, rows - rows // 2500), 16)


def test_the_decided_tables():
    sizes = prime_sizes(500_000, 16)
    assert (sizes[0], sizes[-1], sum(sizes)) == (499_801, 500_041, 7_998_862)
