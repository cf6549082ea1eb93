"""A stack of layers: the pattern string that Megatron's HybridModel takes, and where a pipeline may cut it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model.kinds.kind import Kind


@dataclass(frozen=True)
class Layer:
    """One layer of the main stack: its number as Megatron counts, from 1, what it is, and the source of its indices."""

    number: int
    of: Kind
    indices_from: int | None = None  # sparse attention only: the layer that computes the top-k

    @property
    def kind(self) -> str:
        return self.of.name


def megatron_pattern(
    stack: tuple[Layer, ...],
    mtp: Kind,
    mtp_depths: int,
    cuts: tuple[int, ...] = (),
    symbols: Mapping[str, str] | None = None,
) -> str:
    """``stack`` in Megatron's symbols: "|" after each layer number in ``cuts``, "/" and ``mtp``'s for each MTP depth.

    ``symbols``: {slot: the symbol that a release of Megatron has for it}, in place of the kinds' own.
    """

    def of(kind: Kind) -> str:
        return kind.symbol if symbols is None else "".join(symbols[slot] for slot in kind.slots)

    main = "".join(of(layer.of) + ("|" if layer.number in cuts else "") for layer in stack)
    return main + f"/{of(mtp)}" * mtp_depths


def possible_cuts(stack: tuple[Layer, ...]) -> list[int]:
    """Layer numbers after which a pipeline stage may end: no sparse layer may be parted from its indices.

    Megatron carries the indices on the micro-batch's PackedSeqParams, which does not travel between stages.
    """
    groups = [(layer.indices_from, layer.number) for layer in stack if layer.indices_from is not None]
    last = stack[-1].number
    return [n for n in range(1, last) if not any(first <= n < number for first, number in groups)]


def even_cuts(stack: tuple[Layer, ...], stages: int) -> tuple[int, ...]:
    """Where to cut the stack into ``stages``, as near to equal layer counts as ``possible_cuts`` allows.

    Raises ValueError if there are too few places to cut.
    """
    allowed, chosen = possible_cuts(stack), list[int]()
    spare = len(allowed) - (stages - 1)
    if spare < 0:
        raise ValueError(f"{len(stack)} layers can be cut into {len(allowed) + 1} stages at most, not {stages}")
    for stage in range(1, stages):
        free = [n for n in allowed[: spare + stage] if not chosen or n > chosen[-1]]  # leaves the later cuts a place
        chosen.append(min(free, key=lambda n: (abs(n - stage * len(stack) / stages), n)))
    return tuple(chosen)
