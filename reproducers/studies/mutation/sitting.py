"""One pack's mutants tried in one go, as the command line asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psutil

from patchlane.base.wording import count
from reproducers.host import cores
from reproducers.record.mutation import Tried, equivalents
from reproducers.record.schema import Pack
from reproducers.studies.mutation import trying
from reproducers.studies.mutation.candidates import Chosen, Only, choose
from reproducers.studies.mutation.score import Sitting
from reproducers.trial.experiment import Request

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What the command line asks of every pack. ``sample`` None: all generated mutants; ``jobs`` 0: as many as fit.

    ``within_s``: no mutant is begun after so many seconds; those tried by then are the sample.
    """

    only: Only | None = None
    sample: int | None = None
    seed: int = 0
    lane: str = "cpu"
    jobs: int = 0
    timeout_s: float | None = None
    within_s: float | None = None
    census: bool = False


def chosen(pack: Pack, asked: Asked) -> Chosen:
    """The pack's mutants that are asked for."""
    return choose(pack, trying.pinned_tree(pack), asked.only, asked.sample, asked.seed)


def sit(pack: Pack, asked: Asked, say: Say) -> Sitting:
    """Run the pack as it is, then all mutants that are asked for; ``say`` gets a line as each ends.

    CannotTestHere and ``trying.Unproved`` where the pack as it is gives no ground to try a mutant on.
    """
    explained, picked = equivalents(pack, asked.lane), chosen(pack, asked)
    total = len(picked.candidates)
    workers = asked.jobs or fitting(pack, asked.lane)
    mutants, others = total - len(picked.alternatives), len(picked.alternatives)
    trying_them = count(mutants, "mutant") + (f" and {count(others, 'alternative')}" if others else "")
    say(f"{pack.id}: the pack as it is, then {trying_them}, {workers} at a time")
    request = Request(lane=asked.lane, threads=cores.threads(workers), timeout_s=asked.timeout_s, census=asked.census)
    ground = trying.prepare(pack, request)

    def ended(number: int, tried: Tried, seconds: float) -> None:
        left = seconds / number * (total - number)
        say(f"[{number}/{total}] {word(tried):10} {tried.name}  {tried.where}  (about {left:.0f} s left)")

    results = trying.try_all(ground, picked.candidates, workers, explained, ended, asked.within_s)
    return Sitting(ground, picked.among({tried.name for tried, _ in results}), results, explained)


def word(tried: Tried) -> str:
    """What became of a mutant, or an alternative, in one word."""
    if tried.how == "alternative":
        return "accepted" if tried.survived or tried.unseen else "refused" if tried.tested else "not tested"
    if tried.survived:
        return "explained" if tried.explained else "survived"
    return "killed" if tried.killed else "refused" if tried.refused else "not tested"


def fitting(pack: Pack, lane: str) -> int:
    """Mutants at a time: one a core, as far as memory holds an arm each at its limit; one where a GPU is shared."""
    if lane == "cuda":
        return 1
    limits = pack.lanes.get(lane)  # type: ignore[call-overload]
    room = psutil.virtual_memory().available / 2**30 // limits.memory_gib if limits else 1
    return max(1, min(cores.usable(), int(room)))
