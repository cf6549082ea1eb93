"""Cases by hypothesis: drawn by a seed, and the first that fails shrunk within a time."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from reproducers.studies.hunt.targets.target import Target
from reproducers.studies.hunt.trying import Case

LAYOUTS = ("plain", "guarded", "spaced", "swapped", "inner", "expanded")
SPREADS = ("normal", "large", "small", "ties")
WEIGHTS = ("signed", "masked", "positive")
SEEDS = 16


class Over(BaseException):
    """The time is over; hypothesis lets it pass."""


class _Fails(Exception):
    """What hypothesis takes for a failing case."""


def space(target: Target, keywords: set[str] | None) -> st.SearchStrategy[Case]:
    """A target's cases. ``keywords``: those that this release's function takes, None for any; others are left out."""
    known = [o for o in target.operands if keywords is None or o.name in keywords]
    dropped = [o.name for o in target.operands if o not in known]
    options = {n: v for n, v in target.options.items() if keywords is None or n in keywords}

    def case(drawn: dict[str, Any]) -> Case:
        absent = [*dropped, *(o.name for o, gone in zip(known, drawn["absent"], strict=True) if gone and o.absent)]
        needs = [o.name for o in known if o.grad and o.name not in absent]
        return Case(
            drawn["sizes"],
            drawn["options"],
            {o.name: layout for o, layout in zip(known, drawn["layouts"], strict=True) if layout != "plain"},
            absent,
            needs,
            drawn["spread"],
            (drawn["weights"], drawn["above"]),
            drawn["dtype"],
            drawn["seed"],
        )

    # two draws in three leave a dimension of the space at its simplest, so that rare values meet one another seldom
    def mostly(first: Any, *others: Any) -> st.SearchStrategy[Any]:
        return st.sampled_from((first, first, *others)) if others else st.just(first)

    drawn = st.fixed_dictionaries(
        {
            "sizes": st.fixed_dictionaries({n: st.sampled_from(v) for n, v in target.sizes.items()}),
            "options": st.fixed_dictionaries({n: st.sampled_from(v) for n, v in options.items()}),
            "layouts": st.tuples(*(mostly(LAYOUTS[0], *LAYOUTS[1:]) for _ in known)),
            "absent": st.tuples(*(st.booleans() if o.absent else st.just(False) for o in known)),
            "spread": st.sampled_from(SPREADS),
            "weights": st.sampled_from(WEIGHTS),
            "above": mostly("plain", "swapped", "expanded"),
            "dtype": st.sampled_from(target.dtypes),
            "seed": st.integers(0, SEEDS - 1),
        }
    )
    return drawn.map(case).filter(lambda c: bool(c.needs) and target.fits(c.sizes, c.options))


def key(case: Case) -> str:
    """The case as text, the same for the same case."""
    return json.dumps(dataclasses.asdict(case), sort_keys=True)


def first(
    cases: st.SearchStrategy[Case],
    fails: Callable[[Case], bool],
    count: int,
    seed: int,
    shrink_s: float,
    until: Callable[[], float],
) -> Case | None:
    """The simplest case that ``fails``, of ``count`` drawn with ``seed``; None where none does.

    Once one fails it is shrunk for ``shrink_s`` seconds: cases met later pass unseen. Raises Over where time is over
    (``until``: the clock's time) before a case has failed.
    """
    seen, best, end = dict[str, bool](), list[Case](), list[float]()

    def tried(case: Case) -> None:
        name = key(case)
        if name not in seen:
            if not end and time.time() > until():
                raise Over
            if end and time.time() > min(end[0], until()):
                return
            seen[name] = fails(case)
        if seen[name]:
            end[:] = end or [time.time() + shrink_s]
            best[:] = [case]  # the last that hypothesis asks for is the simplest
            raise _Fails

    chosen = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    try:
        seeded(seed)(chosen(given(cases)(tried)))()
    except _Fails:
        return best[0]
    return None
