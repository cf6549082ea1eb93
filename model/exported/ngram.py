"""n-gram hash embedding: the last two and three tokens together, looked up by their hash.

Hash embeddings of n-grams as in Over-tokenized Transformer (arXiv 2501.16975); the hash is integer arithmetic on
constants of this module, so every process, device and library computes the same rows. Nothing overflows: a factor has
44 bits and a token 18, so products stay below 2⁶² and no sign arises.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

TOKEN_BITS = 18
FACTOR_BITS = 44
BIAS_BITS = FACTOR_BITS + TOKEN_BITS
SEED = 0x9E3779B97F4A7C15  # splitmix64's increment: 2⁶⁴ / golden ratio


def splitmix64(index: int) -> int:
    """The ``index``-th output, from 0, of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) started at SEED: 64 bits."""
    mask = (1 << 64) - 1
    z = (SEED * (index + 2)) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


@cache
def hash_constants(orders: tuple[int, ...], heads: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """(factors [tables][longest order], biases [tables]) of len(orders) × heads tables, order by order.

    Factors are odd, distinct for each table and place, and 0 for places beyond a table's order.
    """
    longest, tables = max(orders), [order for order in orders for _ in range(heads)]
    drawn = [[splitmix64(t * (longest + 1) + i) for i in range(longest + 1)] for t in range(len(tables))]
    factors = tuple(
        tuple(row[i] >> (64 - FACTOR_BITS) | 1 if i < order else 0 for i in range(longest))
        for row, order in zip(drawn, tables, strict=True)
    )
    return factors, tuple(row[longest] >> (64 - BIAS_BITS) for row in drawn)


@cache
def _on(device: torch.device, orders: tuple[int, ...], heads: int, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Factors [longest, tables], biases, sizes and offsets [tables], int64.

    They are not buffers: loading a checkpoint or materialising a model from the meta device would change or lose them.
    """
    factors, biases = hash_constants(orders, heads)
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    table = [list(place) for place in zip(*factors, strict=True)]
    return tuple(torch.tensor(x, dtype=torch.int64, device=device) for x in (table, biases, sizes, starts))


class NgramHashEmbedding(nn.Module):  # type: ignore[misc]
    """tokens [T] → [T, hidden], to be added to the word embedding; causal, within documents, 0 before training.

    ``len(orders) * heads`` tables of ``sizes`` × ``dim``, one flat ``nn.Embedding``; a token's rows of
    all tables, side by side, go through a projection without bias. Only the projection starts at 0: it learns from the
    first step, the tables from the second. The tables are not decayed (``_no_weight_decay``).
    """

    def __init__(
        self,
        hidden: int,
        vocab: int,
        sizes: tuple[int, ...],
        orders: tuple[int, ...] = (2, 3),
        heads: int = 8,
        dim: int = 16,
    ) -> None:
        """``sizes``: rows of each table, order by order; primes, for a hash modulo a prime uses all of its bits.

        Raises ValueError when ``vocab`` token ids and one for "before the document" do not fit 18 bits, and for another
        number of sizes.
        """
        super().__init__()
        if len(sizes) != len(orders) * heads:
            raise ValueError(f"{len(sizes)} sizes for {len(orders) * heads} tables of the n-gram hash")
        if vocab >= 1 << TOKEN_BITS:
            raise ValueError(f"the n-gram hash takes token ids below {(1 << TOKEN_BITS) - 1:,}, not {vocab:,} of them")
        self.orders, self.heads, self.pad = tuple(orders), heads, vocab
        self.sizes = tuple(sizes)
        self.table = nn.Embedding(sum(self.sizes), dim)
        self.table.weight._no_weight_decay = True
        self.projection = nn.Linear(len(self.sizes) * dim, hidden, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Tables normal with deviation 0.02, projection 0; as after ``to_empty``."""
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.zeros_(self.projection.weight)

    def rows(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Rows of the flat table, [T, tables] int64, of tokens [T] int64 at positions [T] within their documents.

        offset[t] + ((XOR over i of factor[t, i] · token[s - i]) XOR bias[t]) mod size[t], tokens before the document
        counting as the id ``vocab``.
        """
        factors, biases, sizes, offsets = _on(tokens.device, self.orders, self.heads, self.sizes)
        tokens = tokens.long()
        mixed = biases ^ (tokens.unsqueeze(-1) * factors[0])  # [T, tables]
        for back in range(1, len(factors)):
            earlier = torch.where(positions >= back, tokens.roll(back), self.pad)  # [T]
            mixed = mixed ^ (earlier.unsqueeze(-1) * factors[back])
        return offsets + mixed % sizes

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[T, hidden] in the projection's dtype, of tokens and positions [T] int64."""
        out: Tensor = self.projection(self.table(self.rows(tokens, positions)).flatten(1))
        return out
