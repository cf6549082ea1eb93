"""Whose turn a row of a blend is: which dataset each global row is of, and which of its rows it is.

Row n goes to the dataset whose turn it is by R. Tijdeman, *The chairman assignment problem*, Discrete Mathematics 32
(1980) 323-330: after n rows a dataset of share w has had w·n of them, give or take 1 - 1/(2k - 2) for k datasets.
Megatron's rule, the largest deficit (``build_blending_indices``, megatron/core/datasets/helpers.cpp of megatron-core
0.19.0), is off by up to 1.7 rows from three datasets on, fills an index of a size known beforehand from row 0 on, and
is compiled, which a stack taken from a commit is not. This one is exact: weights are fractions, counts are integers.

A dataset's own row j is a job: it may be taken from one number of rows on, and must be by another, and of those that
may the one with the earliest deadline is. Both numbers have a formula, so far from row 0 all but a few jobs are known
to be taken or not to be. For those few the two extremes are followed, the earliest deadlines pending and the latest.
A step keeps their order (each adds the same jobs and takes the earliest), so what is true lies between them and, once
they are equal, is known.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

from model.data.errors import DataError

NEAR = 256  # rows that are stepped through rather than jumped over, and how far back the first jump looks

Job = tuple[int, int, int]  # (deadline, dataset, its row from 0 on): of two with one deadline the first dataset's


class Turns:
    """The datasets' turns: ``at`` and ``drawn`` are functions of the row's number alone.

    Weights as whole numbers sum to W. After W rows each dataset has had as many as its weight is, so the turns repeat.
    A jump costs some hundreds of steps, whatever W is; among many datasets with one of some millionths, up to as many
    rows as that one takes one of. ``restore`` jumps at no cost.
    """

    def __init__(self, shares: Sequence[Fraction]) -> None:
        common = math.lcm(*(share.denominator for share in shares))
        self._weights = [int(share * common) for share in shares]
        self._total, self._slack = sum(self._weights), max(2 * len(shares) - 2, 1)
        multiple = math.lcm(*self._weights)
        self._pace = [multiple // weight for weight in self._weights]  # of deadlines, as whole numbers
        self._now = _Place(self, 0, [])

    def at(self, number: int) -> tuple[int, int]:
        """(dataset, its row) of global row ``number``, from 0 on."""
        if len(self._weights) == 1:
            return 0, number
        before, place = divmod(number, self._total)
        if self._now.taken != place + 1 or self._now.last is None:
            self._go(place)
            self._now.step()
        assert self._now.last is not None
        _, chosen, own = self._now.last
        return chosen, before * self._weights[chosen] + own

    def drawn(self, number: int) -> list[int]:
        """How many of its rows each dataset has had, after ``number`` of all."""
        if len(self._weights) == 1:
            return [number]
        before, place = divmod(number, self._total)
        self._go(place)
        left = [chosen for _, chosen, _ in self._now.pending]
        return [n * before + self.released(at, place) - left.count(at) for at, n in enumerate(self._weights)]

    def restore(self, number: int, drawn: Sequence[int]) -> None:
        """Go on after ``number`` rows, of which each of the several datasets has had what ``drawn`` said then.

        Raises DataError for counts that these weights never have there.
        """
        before, place = divmod(number, self._total)
        counts = [had - before * weight for had, weight in zip(drawn, self._weights, strict=False)]
        bounds = [(self.due(at, place), self.released(at, place)) for at in range(len(self._weights))]
        if len(drawn) != len(bounds) or sum(counts) != place:
            raise DataError(f"the datasets cannot have had {drawn} of {number} rows")
        if any(not low <= had <= high for had, (low, high) in zip(counts, bounds, strict=True)):
            raise DataError(f"by their weights the datasets cannot have had {drawn} of {number} rows")
        left = [range(had, high) for had, (_, high) in zip(counts, bounds, strict=True)]
        self._now = _Place(self, place, [self.job(at, own) for at, rows in enumerate(left) for own in rows])

    def released(self, at: int, taken: int) -> int:
        """The dataset's rows that may be taken among the first ``taken``: those by which it is behind its share by
        1 / (2k - 2) of a row or more."""
        return max((self._slack * self._weights[at] * taken - self._total) // (self._slack * self._total) + 1, 0)

    def release(self, at: int, own: int) -> int:
        """The least ``taken`` for which the dataset's row ``own`` is released."""
        return -(-self._total * (self._slack * own + 1) // (self._slack * self._weights[at]))

    def due(self, at: int, taken: int) -> int:
        """The dataset's rows that are among the first ``taken`` whatever the others are: their deadlines are past."""
        past = self._slack * self._weights[at] * taken + self._total - 1
        return min(past // (self._slack * self._total), self._weights[at])

    def job(self, at: int, own: int) -> Job:
        """The dataset's row ``own``, with its deadline."""
        return (self._slack * (own + 1) - 1) * self._pace[at], at, own

    def _go(self, place: int) -> None:
        """To where ``place`` rows of these W have been taken."""
        if not 0 <= place - self._now.taken <= NEAR:
            self._now = self._jump(place)
        while self._now.taken < place:
            self._now.step()

    def _jump(self, place: int) -> _Place:
        """A place at or before ``place`` whose pending jobs are known."""
        start = self._now.taken if self._now.taken <= place else 0
        back = NEAR
        while place - back > start:
            low, high = self._bounds(place - back)
            while low.pending != high.pending and low.taken < place:
                low.step()
                high.step()
            if low.pending == high.pending:
                return low
            back *= 4
        return self._now if start else _Place(self, 0, [])

    def _bounds(self, taken: int) -> tuple[_Place, _Place]:
        """The places between which the one after ``taken`` rows is: the earliest deadlines pending, the latest."""
        counts = [(self.due(at, taken), self.released(at, taken)) for at in range(len(self._weights))]
        jobs = sorted(self.job(at, own) for at, (first, last) in enumerate(counts) for own in range(first, last))
        pending = sum(last for _, last in counts) - taken
        return _Place(self, taken, jobs[:pending]), _Place(self, taken, jobs[len(jobs) - pending :])


class _Place:
    """After ``taken`` rows: which jobs are ``pending``, a heap, and when each dataset's next one is released."""

    def __init__(self, turns: Turns, taken: int, pending: list[Job]) -> None:
        self.turns, self.taken, self.pending = turns, taken, sorted(pending)
        self.last: Job | None = None
        jobs = [(at, turns.released(at, taken)) for at in range(len(turns._weights))]
        self.releases = sorted((turns.release(at, own), at, own) for at, own in jobs)

    def step(self) -> None:
        """Take the next row."""
        self.taken += 1
        while self.releases[0][0] <= self.taken:
            _, at, own = self.releases[0]
            heapq.heappush(self.pending, self.turns.job(at, own))
            heapq.heapreplace(self.releases, (self.turns.release(at, own + 1), at, own + 1))
        self.last = heapq.heappop(self.pending)
