"""Of a step that was taken: losses, gradients, their norm, and that each kind of parameter was updated once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from model.invariants.invariant import Invariant, Step, some
from model.invariants.view import View, digests, largest, without_expert
from model.step.measured import norms

CLOSE = 1e-3  # of a norm: sums of fp32 in another order, and the factor of clipping
# kinds that only a document of some length has a gradient of: shorter ones have no block to compress or to choose
OF_LONG = ("compressor", "indexer")


class Losses(Invariant):
    """Each loss is a number: the main one, MTP's, the routers' and the indexers'."""

    name = "losses"
    remedy = "resume from the last checkpoint with a lower --set learning_rate=RATE"

    def after(self, view: View, step: Step | None) -> list[str]:
        assert step is not None
        return [f"{name} is {value}" for name, value in step.outcome.losses.items() if not math.isfinite(value)]

    def broken(self, ranks: Sequence[list[str]]) -> str:
        return next((f"{some(bad)} on rank {rank}" for rank, bad in enumerate(ranks) if bad), "")


class Gradients(Invariant):
    """A parameter that had a gradient in a checked step has one in the next, and some parameter of each kind has one.

    A layer's experts are one: a single one gets no token at times.
    """

    name = "gradients"
    remedy = "find what cut the graph: a frozen part, a detach, a view of a buffer; python -m model.align SIZE compares"

    def __init__(self) -> None:
        self._had: dict[str, int] = {}  # the longest document of a step in which it had one, the least such
        self._kinds: dict[str, bool] = {}

    def after(self, view: View, step: Step | None) -> tuple[dict[str, tuple[str, bool]], int]:
        """{name: (kind, whether it has a gradient)} of what this rank updates, and its longest document."""
        assert step is not None
        held = [(share, share.master.grad) for share in view.shares]
        tops = iter(largest([gradient for _, gradient in held if gradient is not None]))
        found: dict[str, tuple[str, bool]] = {}
        for share, gradient in held:
            name = without_expert(share.name)
            has = gradient is not None and next(tops) != 0
            found[name] = share.kind, has or found.get(name, ("", False))[1]
        return found, max(batch.max_seqlen for batch in step.batches)

    def broken(self, ranks: Sequence[tuple[dict[str, tuple[str, bool]], int]]) -> str:
        longest = max(length for _, length in ranks)
        found: dict[str, tuple[str, bool]] = {}
        for named, _ in ranks:
            for name, (kind, has) in named.items():
                found[name] = kind, has or found.get(name, ("", False))[1]
        lost = [
            name
            for name, (kind, has) in found.items()
            if not has and name in self._had and (kind not in OF_LONG or longest >= self._had[name])
        ]
        for name, (kind, has) in found.items():
            self._kinds[kind] = self._kinds.get(kind, False) or has
            if has:
                self._had[name] = min(longest, self._had.get(name, longest))
        if lost:
            return f"{some(lost)} has no gradient on any rank, and had one before"
        never = [kind for kind, ever in self._kinds.items() if not ever]
        return f"no parameter of {some(never)} has had a gradient on any rank" if never else ""


class Norm(Invariant):
    """The norm by which gradients are clipped is that of all gradients, each counted once."""

    name = "norm"
    remedy = "compare python -m model.align SIZE; until it is found a higher --set clip=NORM leaves clipping out"

    def after(self, view: View, step: Step | None) -> tuple[float, float, float]:
        """(sum of squares of what this rank updates, after clipping; the norm before it; the most that is left)."""
        assert step is not None
        return float(view.norms.squares().sum()), step.outcome.grad_norm, view.engine.recipe.clip

    def broken(self, ranks: Sequence[tuple[float, float, float]]) -> str:
        _, norm, clip = ranks[0]
        [whole] = norms.unclipped([math.sqrt(sum(squares for squares, *_ in ranks))], norm, clip)
        if abs(whole - norm) <= CLOSE * max(whole, norm):
            return ""
        return f"gradients are clipped by a norm of {norm:.6g}, that of what all ranks update is {whole:.6g}"


class Moving(Invariant):
    """Each kind of parameters that has a gradient is changed by the update, while its learning rate is not 0."""

    name = "moving"
    remedy = "look at the kind's learning rate and at what freezes it; --set learning_rate=RATE sets all kinds'"

    def before(self, view: View) -> None:
        self._masters = digests((share.name, share.master) for share in view.shares)

    def after(self, view: View, step: Step | None) -> dict[str, tuple[bool, bool]]:
        """{kind: (some of it has to move, some of it has moved)} of what this rank updates."""
        now = digests((share.name, share.master) for share in view.shares)
        held = [share for share in view.shares if share.master.grad is not None and share.settings["lr"] > 0]
        tops = dict(zip([share.name for share in held], largest([share.master.grad for share in held]), strict=True))
        found: dict[str, tuple[bool, bool]] = {}
        for share in view.shares:
            must, did = found.get(share.kind, (False, False))
            moved = now[share.name] != self._masters[share.name]
            found[share.kind] = must or tops.get(share.name, 0) > 0, did or moved
        return found

    def broken(self, ranks: Sequence[dict[str, tuple[bool, bool]]]) -> str:
        kinds = {kind for found in ranks for kind in found}
        still = [
            kind
            for kind in sorted(kinds)
            if any(found[kind][0] for found in ranks if kind in found)
            and not any(found[kind][1] for found in ranks if kind in found)
        ]
        return f"no parameter of {some(still)} is changed by the update on any rank" if still else ""


class Counted(Invariant):
    """The optimizer counts each update once, and alike for all parameters: by it moments are corrected for their start
    at zero (pack 36)."""

    name = "updates"
    remedy = "resume from a checkpoint of before with --patches all: pack 36 mends the count of resumed runs"

    def before(self, view: View) -> None:
        self._counts = {share.name: share.updates for share in view.shares}

    def after(self, view: View, step: Step | None) -> dict[int, tuple[str, int]]:
        """{how often updated: (a parameter's name, how many times in this step)}, one of each."""
        found: dict[int, tuple[str, int]] = {}
        for share in view.shares:
            more = share.updates - self._counts[share.name]
            if share.updates not in found or more != 1:
                found[share.updates] = share.name, more
        return found

    def broken(self, ranks: Sequence[dict[int, tuple[str, int]]]) -> str:
        every = [(rank, count, *said) for rank, found in enumerate(ranks) for count, said in found.items()]
        for rank, count, name, more in every:
            if more != 1:
                return f"{name} on rank {rank} counts {more} updates in this step, {count} in all"
        if len({count for _, count, *_ in every}) > 1:
            told = [f"{name} on rank {rank} {count}" for rank, count, name, _ in every]
            return f"parameters count different numbers of updates: {some(told)}"
        return ""
