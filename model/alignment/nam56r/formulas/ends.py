"""What is added at the entrance: rows of hash tables for the last tokens together, and tables of side columns.

A token's row of table t is the XOR of the table's bias and of each of its last tokens times a factor, modulo the
table's size, a prime. Factors and biases are the first outputs of splitmix64 (OOPSLA 2014): for each table its longest
order's count of factors, of which those beyond its own order are left out, then its bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from model.alignment.nam56r.formulas.parts import Said, Weights
from model.families.nam56r import Size

GOLDEN, WORD = 0x9E3779B97F4A7C15, 2**64


def splitmix64() -> Iterator[int]:
    """Its outputs, of a state that begins at its own increment."""
    state = GOLDEN
    while True:
        state = (state + GOLDEN) % WORD
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        yield z ^ (z >> 31)


def primes(first: int) -> Iterator[int]:
    """From ``first`` on."""
    n = max(first, 2)
    while True:
        if all(n % d for d in range(2, int(n**0.5) + 1)):
            yield n
        n += 1


def hash_rows(tokens: list[int], c: Size) -> list[list[int]]:
    """Each token's rows of all tables, which lie one behind the other; what is before a document has the id behind the
    last one."""
    drawn, sizes, longest = splitmix64(), primes(c.ngram.rows - c.ngram.rows // 2500), max(c.ngram.orders)
    found: list[list[int]] = [[] for _ in tokens]
    before = 0
    for order in (order for order in c.ngram.orders for _ in range(c.ngram.heads)):
        factors = [(next(drawn) >> 20) | 1 for _ in range(longest)][:order]  # 44 bits, odd
        bias, size = next(drawn) >> 2, next(sizes)
        for s in range(len(tokens)):
            mixed = bias
            for back, factor in enumerate(factors):
                mixed ^= factor * (tokens[s - back] if back <= s else c.vocab)
            found[s].append(before + mixed % size)
        before += size
    return found


def entrance(tokens: list[int], fields: Mapping[str, list[int]], w: Weights, c: Size) -> Said:
    """``words``, ``ngram``, ``structure`` [S, h], their sum ``entered``; ``rows`` [S, tables] of the hash tables."""
    words = w["embedding.word_embeddings.weight"][tokens]
    rows = torch.tensor(hash_rows(tokens, c))
    ngram = w["ngram.table.weight"][rows].flatten(1) @ w["ngram.projection.weight"].T
    tables = [w[f"structure.embeddings.{name}.weight"][column] for name, column in fields.items()]
    structure = torch.stack(tables).sum(0) @ w["structure.projection.weight"].T
    entered = words + ngram + structure
    return {"rows": rows, "words": words, "ngram": ngram, "structure": structure, "entered": entered}
