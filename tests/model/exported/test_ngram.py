"""The n-gram hash embedding against a twin in Python integers and numpy, across processes and documents."""

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from model.exported.ngram import NgramHashEmbedding, hash_constants, splitmix64
from model.kinds.ends import prime_sizes
from model.layers.common.documents import positions
from reproducers.record.schema import ROOT

VOCAB = 65_536
CU_SEQLENS = torch.tensor([0, 7, 8, 10, 40]).int()
# of PRINT_ROWS, little-endian: should it change, tables already trained are read at other rows
ROWS_SHA256 = "b6b3b20be470753dde1dfd5dfcb6364b0232624dcebc1a3cecd45ab60af1f2b0"


@pytest.fixture
def tokens():
    return torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(0))


def small(hidden=12):
    torch.manual_seed(0)
    return NgramHashEmbedding(hidden, VOCAB, prime_sizes(500, 16))


def rows_by_numpy(module, tokens, cu_seqlens):
    """Rows of the flat table, [T, tables]: one document at a time, wrap-around uint64 arithmetic."""
    factors, biases = hash_constants(module.orders, module.heads)
    hashed = []
    for start, end in pairwise(cu_seqlens):
        document = np.concatenate([[VOCAB, VOCAB], tokens[start:end].numpy()]).astype(np.uint64)
        for s in range(2, len(document)):
            offset = 0
            for t, size in enumerate(module.sizes):
                order = module.orders[t // module.heads]
                mixed = np.uint64(biases[t])
                for i in range(order):
                    mixed ^= np.uint64(factors[t][i]) * document[s - i]
                hashed.append(offset + int(mixed % np.uint64(size)))
                offset += size
    return torch.tensor(hashed).view(len(tokens), -1)


def test_rows_are_the_numpy_twins(tokens):
    module = small()
    assert torch.equal(
        module.rows(tokens, positions(CU_SEQLENS, 40)), rows_by_numpy(module, tokens, CU_SEQLENS.tolist())
    )


def test_the_tables_of_nam56r():
    with torch.device("meta"):
        module = NgramHashEmbedding(3584, VOCAB, prime_sizes(500_000, 16))
    sizes = prime_sizes(500_000, 16)
    assert (len(set(sizes)), sum(sizes), min(sizes), max(sizes)) == (16, 7_998_862, 499_801, 500_041)
    assert all(n % d for n in sizes for d in range(2, 708))
    assert sum(p.numel() for p in module.parameters()) == 7_998_862 * 16 + 256 * 3584


def test_the_largest_products_stay_positive():
    """Every token at the greatest id that is allowed: the twin's unsigned 64 bits and int64 agree."""
    module = NgramHashEmbedding(4, (1 << 18) - 1, prime_sizes(500, 16))
    tokens = torch.full((3,), (1 << 18) - 2)
    factors, biases = hash_constants(module.orders, module.heads)
    assert max(max(row) for row in factors) < 1 << 44 and max(biases) < 1 << 62
    assert bool((module.rows(tokens, torch.arange(3)) >= 0).all())
    with pytest.raises(ValueError, match=r"262,143.*262,144"):
        NgramHashEmbedding(4, 1 << 18, prime_sizes(500, 16))


def test_each_table_has_rows_of_its_own(tokens):
    module = small()
    rows, starts = module.rows(tokens, positions(CU_SEQLENS, 40)), np.cumsum([0, *module.sizes])
    for table in range(16):
        assert starts[table] <= rows[:, table].min() and rows[:, table].max() < starts[table + 1]
    assert starts[-1] == module.table.num_embeddings


def test_a_row_depends_on_the_last_tokens_of_its_document_alone(tokens):
    """Causal, two orders, and the token before a document's first is a fixed one."""
    module, place = small(), positions(CU_SEQLENS, 40)
    before = module.rows(tokens, place)
    for at in range(40):
        changed = tokens.clone()
        changed[at] = (changed[at] + 1) % VOCAB
        moved = module.rows(changed, place) != before
        end = next(int(e) for e in CU_SEQLENS if e > at)
        for table, order in ((0, 2), (8, 3)):
            seen = moved[:, table : table + 8].any(dim=1).nonzero().flatten().tolist()
            assert seen == list(range(at, min(at + order, end)))


def test_where_a_document_lies_in_the_stream_does_not_matter(tokens):
    module = small()
    alone = module.rows(tokens[10:], torch.arange(30))
    assert torch.equal(module.rows(tokens, positions(CU_SEQLENS, 40))[10:], alone)


def test_constants_are_splitmix64s_and_factors_odd_and_distinct():
    # the second and third numbers of the generator's well-known sequence from 0, which passes SEED on its way
    assert splitmix64(0) == 0x6E789E6AA1B965F4 and splitmix64(1) == 0x06C45D188009454F
    factors, biases = hash_constants((2, 3), 8)
    used = [f for row in factors for f in row if f]
    assert len(set(used)) == len(used) == 40 and all(f % 2 for f in used) and len(set(biases)) == 16


PRINT_ROWS = """
import hashlib, torch
from model.exported.ngram import NgramHashEmbedding
from model.kinds.ends import prime_sizes
torch.manual_seed({seed}); torch.rand(7)
with torch.device("meta"):
    module = NgramHashEmbedding(8, 65_536, prime_sizes(500_000, 16))
rows = module.rows((torch.arange(64) * 1009) % 65_536, torch.arange(64))
print(hashlib.sha256(rows.numpy().tobytes()).hexdigest())
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_every_process_computes_the_same_rows(seed):
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRINT_ROWS.format(seed=seed)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == ROWS_SHA256, done.stderr


def test_values_are_the_projected_rows(tokens):
    module = small().double()
    torch.nn.init.normal_(module.projection.weight)
    place = positions(CU_SEQLENS, 40)
    rows = rows_by_numpy(module, tokens, CU_SEQLENS.tolist())
    looked_up = torch.stack([torch.cat([module.table.weight[r] for r in row]) for row in rows])  # [T, 256]
    torch.testing.assert_close(module(tokens, place), looked_up @ module.projection.weight.T)


def test_it_starts_at_zero_and_can_leave_it(tokens):
    """First step: a gradient for the projection, none for the tables; from the second on, for both."""
    module, place = small(), positions(CU_SEQLENS, 40)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    norms = []
    for _ in range(2):
        optimizer.zero_grad()
        out = module(tokens, place)
        (out - 1).square().mean().backward()
        norms.append([out.abs().max(), module.table.weight.grad.norm(), module.projection.weight.grad.norm()])
        optimizer.step()
    (value, table, projection), (_, table_2, projection_2) = norms
    assert value == table == 0 and min(projection, table_2, projection_2) > 0
