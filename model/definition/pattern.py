"""Which kind each layer is: NAM56R's period, and the pattern string that Megatron's HybridModel takes."""

from __future__ import annotations

from dataclasses import dataclass

PERIOD = "AEMEAEMEAEMR"
# Megatron's symbols: "+" MLA, "D" sparse attention, "E" MoE, "M" Mamba. The M²RNN takes the slot of "G": Megatron-Core
# builds any spec given for it, and NAM56R does not need it otherwise.
SYMBOLS = {"mla": "+", "dsa": "D", "moe": "E", "mamba3": "M", "m2rnn": "G"}
MTP_PATTERN = "+-"  # one MTP depth: dense MLA, dense MLP
KIND_OF_LETTER = {"E": "moe", "M": "mamba3", "R": "m2rnn"}
MLA_EVERY = 4  # the first of each four attention layers is full MLA, the other three are sparse


@dataclass(frozen=True)
class Layer:
    """One layer of the main stack: its number as Megatron counts, from 1, its kind, and the source of its indices."""

    number: int
    kind: str
    indices_from: int | None = None  # DSA only: the layer that computes the top-k; the first of three computes its own


def layers(count: int, period: str = PERIOD) -> tuple[Layer, ...]:
    """The first ``count`` layers of the tiled period, 1-based. ValueError for a letter that names no layer kind."""
    stack, attention, source = [], 0, 0
    for number in range(1, count + 1):
        letter = period[(number - 1) % len(period)]
        if letter != "A":
            if letter not in KIND_OF_LETTER:
                raise ValueError(f"layer {number}: {letter!r} is no layer kind; A, {', '.join(KIND_OF_LETTER)} are")
            stack.append(Layer(number, KIND_OF_LETTER[letter]))
            continue
        rank, attention = attention, attention + 1
        if rank % MLA_EVERY == 0:
            stack.append(Layer(number, "mla"))
            continue
        source = number if rank % MLA_EVERY == 1 else source
        stack.append(Layer(number, "dsa", source))
    return tuple(stack)


def megatron_pattern(
    stack: tuple[Layer, ...], mtp_depths: int, cuts: tuple[int, ...] = (), mla: str = SYMBOLS["mla"]
) -> str:
    """``stack`` in Megatron's symbols: "|" after each layer number in ``cuts``, "/+-" for each MTP depth.

    ``mla``: the symbol of MLA's place, where Megatron has another.
    """
    main = "".join(SYMBOLS[layer.kind] + ("|" if layer.number in cuts else "") for layer in stack)
    return (main + f"/{MTP_PATTERN}" * mtp_depths).replace(SYMBOLS["mla"], mla)


def index_sharing(stack: tuple[Layer, ...]) -> tuple[int, int]:
    """(offset, frequency) of Megatron's rule: layer L computes its top-k where ``(L - offset) % frequency == 0``.

    ValueError where the stack's sharing does not follow such a rule. (1, 1) without sparse attention.
    """
    sparse = [layer for layer in stack if layer.kind == "dsa"]
    if not sparse:
        return 1, 1
    offset, frequency = sparse[0].number, MLA_EVERY * PERIOD.index("A", 1)
    for layer in sparse:
        if layer.number - (layer.number - offset) % frequency != layer.indices_from:
            raise ValueError(f"layer {layer.number} takes indices from {layer.indices_from}, not by Megatron's rule")
    return offset, frequency


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
