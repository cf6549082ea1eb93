"""What a rank's part of a step has to compute and to move, by kinds of kernels: FLOPs and bytes by stated formulas.

Every count is a least one. Products are each kind's own (``model.kinds``), forward once and backward twice; a layer
that ``recompute`` computes again once more. Attention and indexer look at the keys of their own document only, which
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
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from model.definition import memory
from model.definition.memory import Layout
from model.families.family import Family
from model.kinds import kind
from model.kinds.kind import BF16, FP32, Kernels, Seen

NO_SIZES = "a trace does not say what these kernels move"
ROUTING = "routing, sorting and indexing"
LINKS = "goes over links, which no ceiling is measured of"


@dataclass(frozen=True)
class Documents:
    """Documents that a rank has seen: {tokens of one: how many of that length}."""

    lengths: Mapping[int, float] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        return sum(n * count for n, count in self.lengths.items())

    def keys(self, most: float = math.inf) -> float:
        """n tokens of a document see 1 + 2 + … + n keys, each ``most`` at most."""
        return self.windows(1, most)

    def windows(self, ratio: int, most: float = math.inf) -> float:
        return sum(count * kind.windows(n, ratio, most) for n, count in self.lengths.items())

    def __add__(self, other: Documents) -> Documents:
        lengths = dict(self.lengths)
        for n, count in other.lengths.items():
            lengths[n] = lengths.get(n, 0) + count
        return Documents(lengths)

    def over(self, steps: int) -> Documents:
        """The mean of ``steps`` steps."""
        return Documents({n: count / steps for n, count in self.lengths.items()})


def between(bounds: Sequence[int]) -> Documents:
    """The documents of a stream that lie between ``bounds``."""
    return Documents(Counter(end - first for first, end in itertools.pairwise(bounds)))


@dataclass(frozen=True)
class Share:
    """What a rank computes of a run: the layers of its stage, on its own rows."""

    size: Family
    layout: Layout
    stage: int = 0
    recompute: bool = False


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
    last = share.stage == share.layout.pipeline - 1
    ends = [size.entrance] * (share.stage == 0) + [size.head, *[size.mtp] * size.mtp_depths] * last
    layers = [layer.of for layer in memory.stages(size, share.layout)[share.stage]]
    forward = 2 if share.recompute else 1
    found = dict.fromkeys(_kernels(size, seen), 0.0)
    for part, passes in [*((layer, forward) for layer in layers), *((end, 1) for end in ends)]:
        for one in part.products(seen):
            if one.kernels is not None:
                found[one.kernels] += (1 if one.once else passes) * one.flops
                found[one.backward or one.kernels] += one.backwards * one.flops
    normed = (2 * forward + 3) * sum(layer.normed() for layer in layers) + 5 * sum(end.normed() for end in ends)
    # each channel read once and written for each expert; back the other way; both again backward
    routed = sum((2 * forward + 2) * (size.hidden + layer.dispatched()) for layer in layers if layer.experts())
    routed += sum(4 * (size.hidden + end.dispatched()) for end in ends if end.experts())
    logits = sum(end.logits() for end in ends)
    return [
        *(Work(kernels.name, kernels.kinds, count) for kernels, count in found.items()),
        Work("optimizer", ("optimizer",), moved=(7 * FP32 + FP32) * updated(share)),
        Work("norm", ("norm",), moved=tokens * BF16 * normed),
        Work(ROUTING, (ROUTING,), moved=tokens * BF16 * routed),
        Work("cross entropy", ("cross entropy",), moved=2 * BF16 * tokens * logits),
    ]


def _kernels(size: Family, seen: Seen) -> Iterator[Kernels]:
    """All that some layer of the architecture is computed by, also where this rank has none."""
    for part in size.every:
        for one in part.products(seen):
            yield from (kernels for kernels in (one.kernels, one.backward) if kernels is not None)


def updated(share: Share) -> float:
    """Parameters whose master and moments the rank holds."""
    dense, experts = memory.stage_parameters(share.size, share.layout, share.stage)
    return dense / share.layout.data + experts * share.layout.expert / share.layout.data
