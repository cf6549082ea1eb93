"""What a rank's part of a step has to compute and to move, by kinds of kernels: FLOPs and bytes by stated formulas.

Every count is a least one. Products are those of ``model.definition.flops``, forward once and backward twice; a layer
that ``--recompute`` computes again once more. Attention and indexer look at the keys of their own document only, which
are counted from the step's documents. Experts are taken as evenly chosen by the ranks that hold them. Bytes are those
that have to be read and written once if each kernel does all that it can while a value is at hand:

- optimizer: 28 a parameter that the rank updates (gradient, master and two moments read, all but the gradient written,
  fp32), and 4 for the gradient's norm, which has to be known before
- norms: a bf16 channel read and written forward; read twice and written backward; of the layers' norms, Mamba-3's of B
  and C, the last one and MTP's five
- routing: each token's channels in bf16 copied for each of its experts and added again, forward and backward
- cross entropy: each logit read and its gradient written in bf16
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model.definition import flops, memory
from model.definition.memory import BF16, FP32, Layout
from model.definition.sizes import Size

NO_SIZES = "a trace does not say what these kernels move"
LINKS = "goes over links, which no ceiling is measured of"


@dataclass(frozen=True)
class Seen:
    """Tokens, and the keys they may see, summed: ``keys`` of their document so far, ``chosen`` of these by top-k."""

    tokens: float = 0
    keys: float = 0
    chosen: float = 0

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.tokens + other.tokens, self.keys + other.keys, self.chosen + other.chosen)

    def over(self, steps: int) -> Seen:
        """The mean of ``steps`` steps."""
        return Seen(self.tokens / steps, self.keys / steps, self.chosen / steps)


@dataclass(frozen=True)
class Share:
    """What a rank computes of a run: the layers of its stage, on its own rows."""

    size: Size
    layout: Layout
    stage: int = 0
    recompute: bool = False

    def seen(self, bounds: Sequence[int]) -> Seen:
        """Of a stream whose documents lie between ``bounds``: n tokens of one see 1 + 2 + … + n keys."""
        seen, topk = Seen(), self.size.indexer.topk
        for first, end in itertools.pairwise(bounds):
            n = end - first
            short = min(n, topk)
            seen += Seen(n, n * (n + 1) / 2, short * (short + 1) / 2 + (n - short) * topk)
        return seen


@dataclass(frozen=True)
class Work:
    """The least FLOPs or bytes of a step's kernels of some kinds."""

    name: str
    kinds: tuple[str, ...]
    flops: float | None = None
    moved: float | None = None  # bytes, read and written


def of(share: Share, seen: Seen) -> list[Work]:
    """The work of a step in which the rank has ``seen``; kinds that are in none are not counted."""
    size, tokens = share.size, seen.tokens
    layers = memory.stages(size, share.layout)[share.stage]
    count = {kind: sum(layer.kind == kind for layer in layers) for kind in ("mla", "dsa", "moe", "mamba3", "m2rnn")}
    indexers = sum(layer.indices_from == layer.number for layer in layers)
    first, last = share.stage == 0, share.stage == share.layout.pipeline - 1
    depths = size.mtp_depths * last
    forward = 2 if share.recompute else 1
    passes = forward + flops.BACKWARD - 1
    projections = (
        (count["mla"] + count["dsa"]) * flops.mla_projections(size)
        + indexers * flops.indexer_projections(size)
        + count["mamba3"] * flops.mamba3_projections(size)
        + count["moe"] * flops.moe(size)
        + count["m2rnn"] * flops.m2rnn_projections(size)
    )
    ends = depths * flops.mtp_projections(size) + first * flops.entrance(size)
    ends += last * 2 * size.hidden * size.vocab * (1 + size.mtp_depths)
    dense = (passes * count["mla"] + flops.BACKWARD * depths) * flops.mla_scores(size, seen.keys)
    sparse = passes * (
        count["dsa"] * flops.mla_scores(size, seen.chosen) + indexers * flops.indexer_scores(size, seen.keys)
    )
    # the indexer's loss asks for attention's own scores over all keys, without a gradient
    target = indexers * 2 * size.heads * size.attention.qk_dim * seen.keys
    chunks = count["mamba3"] * tokens * flops.mamba3_chunks(size)
    state = count["m2rnn"] * tokens * flops.m2rnn_state(size)
    routed = _routed(share, count["moe"], tokens)
    return [
        Work("matrix products", ("GEMM", "grouped GEMM"), tokens * (passes * projections + flops.BACKWARD * ends)),
        Work("attention over all keys", ("attention",), dense),
        Work("sparse attention and its indexer", SPARSE, sparse + target),
        *_mamba3(size, forward * chunks, (flops.BACKWARD - 1) * chunks),
        Work("M²RNN", ("M²RNN",), passes * state),
        Work("optimizer", ("optimizer",), moved=(7 * FP32 + FP32) * updated(share)),
        Work("norm", ("norm",), moved=tokens * BF16 * _norms(share, count, depths, last, forward)),
        Work("routing, sorting and indexing", ("routing, sorting and indexing",), moved=routed),
        Work("cross entropy", ("cross entropy",), moved=2 * BF16 * tokens * size.vocab * last * (1 + size.mtp_depths)),
    ]


MIMO_BACKWARD = ("Mamba-3 MIMO bwd_fwd", "Mamba-3 MIMO bwd_bwd", "Mamba-3 MIMO backward by blocks")
SPARSE = ("sparse MLA", "DSA main_kernel (sparse MLA forward, indexer loss)", "indexer and top-k")


def _mamba3(size: Size, forward: float, backward: float) -> Iterable[Work]:
    """The kernels of MIMO; SISO's have other shapes and are not counted."""
    if not size.mamba.mimo:
        return []
    return [
        Work("Mamba-3 MIMO forward", ("Mamba-3 MIMO fwd",), forward),
        Work("Mamba-3 MIMO backward", MIMO_BACKWARD, backward),
    ]


def updated(share: Share) -> float:
    """Parameters whose master and moments the rank holds."""
    dense, experts = memory.stage_parameters(share.size, share.layout, share.stage)
    return dense / share.layout.data + experts * share.layout.expert / share.layout.data


def _norms(share: Share, count: dict[str, int], depths: int, last: bool, forward: int) -> float:
    """Reads and writes of a token's channels: two forward, three backward."""
    m, h = share.size.mamba, share.size.hidden
    layers = sum(count.values()) * h + count["mamba3"] * 2 * m.state * m.groups * m.rank
    ends = (last + 5 * depths) * h
    return (2 * forward + 3) * layers + 5 * ends


def _routed(share: Share, layers: int, tokens: float) -> float:
    """Channels of a token, read once and written for each expert; back the other way; both again backward."""
    each = share.size.hidden * (1 + share.size.experts.topk) * BF16
    return layers * tokens * each * (6 if share.recompute else 4)
