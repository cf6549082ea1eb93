"""The plan of waves, by its properties over made-up packs, and the rules one by one."""

import datetime
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import entry
from toy import Toy

from reproducers.desk.blockers import blockers
from reproducers.desk.waves.classes import CLASSES
from reproducers.desk.waves.order import dependencies
from reproducers.desk.waves.plan import propose
from reproducers.desk.waves.proposal import as_json
from reproducers.record.schema import Filing, Search, UpstreamState

TODAY = datetime.date(2026, 12, 1)  # a Tuesday
DAY = datetime.timedelta(days=1)
READY = entry()
STALE = entry("stale")
URL = "https://github.com/example/{}/pull/{}"


class World:
    """Made-up packs with their manifest entries and classes."""

    def __init__(self, base):
        self.base, self.packs, self.entries, self.classes = base, [], {}, {}

    def add(self, number, repo="a", kind="fix", decision="issue", after=(), stacked_on=(), filed=None, entry=READY):
        """One pack; ``filed`` is the day of its filing."""
        state = {"search": Search(found="none", query="x", date=TODAY)}
        if filed:
            state |= {"filed": "issue", "filed_url": URL.format(repo, number), "filed_on": filed}
        pins = self.base.pins | {"beside": self.base.pins["live"].model_copy(update={"stacked_on": list(stacked_on)})}
        pack = self.base.model_copy(
            update={
                "number": number,
                "folder": self.base.folder.with_name(f"{number:02d}_made_up"),
                "upstream": self.base.upstream.model_copy(update={"repo": f"example/{repo}"}),
                "pins": pins,
                "filing": Filing(decision=decision, reason="made up", after=list(after)),
                "upstream_state": UpstreamState(**state),
            }
        )
        self.packs.append(pack)
        self.entries[pack.id], self.classes[pack.id] = entry, kind
        return self

    def plan(self, today=TODAY, size=3, gap=2):
        return propose(self.packs, self.entries, self.classes, today, size, gap)

    def numbers(self, **options):
        return [[pack.number for pack in wave.packs] for wave in self.plan(**options).waves]

    def why(self, number, **options):
        return next(item for item in self.plan(**options).explanations if item.pack.number == number)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Toy(tmp_path_factory.mktemp("toy")).pack(patch="")


@pytest.fixture
def world(base):
    return World(base)


PACK = st.fixed_dictionaries(
    {
        "repo": st.sampled_from("aaabbc"),
        "kind": st.sampled_from(CLASSES),
        "decision": st.sampled_from(["issue"] * 6 + ["hold", "none"]),
        "entry": st.sampled_from([READY] * 6 + [STALE]),
        "filed": st.none() | st.none() | st.dates(TODAY - 6 * DAY, TODAY + DAY),
        "after": st.lists(st.integers(1, 13), max_size=2) | st.just([]),
        "stacked_on": st.just([]) | st.just([]) | st.lists(st.integers(1, 12), max_size=1),
    }
)
CASE = st.fixed_dictionaries(
    {
        "packs": st.lists(PACK, max_size=12),
        "size": st.integers(2, 4),
        "gap": st.integers(2, 3),
        "today": st.dates(TODAY, TODAY + 12 * DAY),
    }
)


def properties(test):
    """Run the test on many made-up cases, the same ones every time."""
    options = settings(
        max_examples=150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    return options(given(case=CASE)(test))


def made(base, case):
    world = World(base)
    for index, values in enumerate(case["packs"]):
        world.add(index + 1, **values)
    return world, world.plan(case["today"], case["size"], case["gap"])


def order_of(plan):
    return [pack.number for wave in plan.waves for pack in wave.packs]


def may_be_filed(world, today):
    """Numbers of packs without a blocker whose dependencies are filed or among them: by growing the set."""
    filed = {pack.number for pack in world.packs if pack.upstream_state.filed_url}
    found = set()
    while True:
        more = {
            pack.number
            for pack in world.packs
            if not blockers(pack, world.entries[pack.id], today) and set(dependencies(pack)) <= found | filed
        }
        if more == found:
            return found
        found = more


@properties
def test_every_ready_pack_is_placed_once_and_no_other(base, case):
    world, plan = made(base, case)
    placed = order_of(plan)
    assert len(placed) == len(set(placed)) and set(placed) == may_be_filed(world, case["today"])


@properties
def test_every_pack_is_explained_once(base, case):
    world, plan = made(base, case)
    assert [item.pack.number for item in plan.explanations] == list(range(1, len(world.packs) + 1))
    wave_of = {pack.number: wave.number for wave in plan.waves for pack in wave.packs}
    for item in plan.explanations:
        own = blockers(item.pack, world.entries[item.pack.id], case["today"])
        assert item.wave == wave_of.get(item.pack.number) and item.why
        assert bool(item.blockers) == (item.wave is None) and all(b.what and b.remedy for b in item.blockers)
        assert set(own) <= set(item.blockers)


@properties
def test_days(base, case):
    world, plan = made(base, case)
    filed = [pack.upstream_state.filed_on for pack in world.packs if pack.upstream_state.filed_on]
    earliest = max([case["today"], *(day + case["gap"] * DAY for day in filed)])
    for wave in plan.waves:
        expected = next(day for day in (earliest, earliest + DAY, earliest + 2 * DAY) if day.isoweekday() < 6)
        assert wave.date == expected
        assert ("moved to Monday" in wave.why) == (expected != earliest)
        earliest = wave.date + case["gap"] * DAY


@properties
def test_sizes_and_repositories(base, case):
    _, plan = made(base, case)
    left = order_of(plan)
    for wave in plan.waves:
        assert 2 <= len(wave.packs) <= case["size"] or wave is plan.waves[-1]
        assert wave.packs and wave.repositories == sorted({pack.upstream.repo for pack in wave.packs})
        if len(wave.repositories) > 1:  # then the lead had no second pack that could go
            assert wave.packs[1].upstream.repo != wave.packs[0].upstream.repo
        left = left[len(wave.packs) :]


@properties
def test_order(base, case):
    world, plan = made(base, case)
    packs = {pack.number: pack for pack in world.packs}
    left = order_of(plan)
    key = {n: (CLASSES.index(world.classes[packs[n].id]), n) for n in left}
    for wave in plan.waves:
        for place, pack in enumerate(wave.packs):
            free = [n for n in left if not set(dependencies(packs[n])) & set(left)]
            own = [n for n in free if packs[n].upstream.repo == wave.packs[0].upstream.repo]
            assert pack.number == min(free if place == 0 else own or [pack.number], key=key.get)
            left.remove(pack.number)


@properties
def test_dependencies_go_first(base, case):
    _, plan = made(base, case)
    placed = order_of(plan)
    for wave in plan.waves:
        for pack in wave.packs:
            earlier = placed[: placed.index(pack.number)]
            assert not (set(dependencies(pack)) & set(placed)) - set(earlier)


@properties
def test_the_same_packs_give_the_same_bytes(base, case):
    world, plan = made(base, case)
    random.Random(0).shuffle(world.packs)
    again = world.plan(case["today"], case["size"], case["gap"])
    assert as_json(plan, plan.waves) == as_json(again, again.waves)


def test_classes_in_order_then_numbers(world):
    for number, kind in enumerate(reversed(CLASSES), 1):
        world.add(number, kind=kind)
    world.add(6, kind="crash fix")
    assert world.numbers(size=4) == [[5, 6, 4, 3], [2, 1]]


def test_a_wave_is_of_the_repository_of_the_first_in_order(world):
    world.add(1, "a", "crash fix").add(2, "b", "crash fix").add(3, "a", "report").add(4, "b", "report")
    assert world.numbers() == [[1, 3], [2, 4]]
    assert (
        world.why(2).why == "crash fix, example/b, 2026-12-03: first in order of what is left; wave 1 is for example/a"
    )


def test_none_is_left_alone_where_two_could_go(world):
    for number in range(1, 5):
        world.add(number)
    assert world.numbers() == [[1, 2], [3, 4]]
    assert world.why(3).why.endswith("wave 1 stops at 2, so that no pack is left alone")
    assert world.numbers(size=4) == [[1, 2, 3, 4]]
    assert world.add(5).numbers() == [[1, 2, 3], [4, 5]]
    assert world.why(4).why.endswith("wave 1 is full")


def test_single_packs_of_repositories_share_a_wave(world):
    world.add(1, "a", "crash fix").add(2, "b", "crash fix").add(3, "b").add(4, "c", "report")
    assert world.numbers() == [[1, 4], [2, 3]]
    assert "with pack01, which has no second pack of its repository to go with" in world.why(4).why
    assert "same repository" in world.why(3).why


def test_without_another_single_one_the_next_in_order_comes_along(world):
    world.add(1, "a", "crash fix").add(2, "b").add(3, "b").add(4, "b")
    assert world.numbers() == [[1, 2], [3, 4]]
    assert world.why(3).why.endswith("wave 1 is for example/a")


def test_a_wave_of_one_is_said_to_be_one(world):
    world.add(1)
    assert "alone, for nothing else is ready" in world.why(1).why
    world.add(2).add(3)
    assert world.numbers(size=2) == [[1, 2], [3]]
    assert "alone, for nothing else is left" in world.why(3, size=2).why


@pytest.mark.parametrize("field", ["after", "stacked_on"])
def test_a_pack_waits_for_what_it_depends_on(world, field):
    world.add(1, kind="crash fix", **{field: [2]}).add(2, kind="report").add(3, kind="fix").add(4, kind="fix")
    assert world.numbers(size=2) == [[3, 4], [2, 1]]
    assert "waits for pack02, in wave 2" in world.why(1, size=2).why
    assert world.numbers(size=4) == [[3, 4, 2, 1]]


def test_both_fields_are_heeded(world):
    world.add(1, after=[3], stacked_on=[2]).add(2).add(3)
    assert world.numbers() == [[2, 3, 1]]


def test_what_is_filed_is_waited_for_no_more(world):
    world.add(1, after=[2]).add(2, filed=TODAY)
    assert world.numbers() == [[1]]
    assert world.why(2).blockers[0].rule == "filed"


@pytest.mark.parametrize(
    "other, said",
    [
        ({"decision": "hold"}, "waits for pack02, which is held: made up"),
        ({"decision": "none"}, "waits for pack02, which is not to be filed: made up"),
        ({"entry": STALE}, "waits for pack02, which is not ready itself"),
    ],
)
def test_what_cannot_be_filed_holds_up_what_is_after_it(world, other, said):
    world.add(1, after=[2]).add(2, **other).add(3, after=[1]).add(4)
    assert world.numbers() == [[4]]
    assert [blocker.what for blocker in world.why(1).blockers] == [said]
    remedy = "do what pack02 needs, or drop pack02 from packs/01_made_up/pack.yaml, filing.after"
    assert world.why(1).blockers[0].remedy == remedy
    assert world.why(3).why == "waits for pack01, which is not ready itself"


def test_what_is_not_to_be_filed_waits_for_nothing(world):
    world.add(1, decision="none", after=[2]).add(2, entry=STALE)
    assert [blocker.rule for blocker in world.why(1).blockers] == ["decision"]


def test_circles_and_unknown_packs_are_explained(world):
    world.add(1, after=[2]).add(2, stacked_on=[1]).add(3, after=[3]).add(4, after=[99]).add(5, after=[1])
    assert world.numbers() == []
    assert world.why(1).why == "pack01, pack02 wait for each other"
    assert world.why(2).blockers[0].remedy == "drop pack01 from packs/02_made_up/pack.yaml, pins.beside.stacked_on"
    assert world.why(3).why == "waits for itself"
    assert world.why(4).why == "waits for pack99, and there is no such pack"
    assert world.why(5).why == "waits for pack01, which is not ready itself"


@pytest.mark.parametrize("after", [{1: 2, 2: 3, 3: 1}, {1: 3, 3: 2, 2: 1}])
def test_a_circle_is_told_by_number(world, after):
    for number in (1, 2, 3):
        world.add(number, after=[after[number]])
    assert world.why(1).why == "pack01, pack02, pack03 wait for each other"


def test_circles_that_touch_are_told_in_the_same_order(world):
    world.add(1, after=[2]).add(2, after=[1, 3]).add(3, after=[2])
    said = world.why(2).why
    assert said == "pack01, pack02 wait for each other; pack02, pack03 wait for each other"
    world.packs.reverse()
    assert world.why(2).why == said


@pytest.mark.parametrize(
    "filed, today, gap, day, why",
    [
        (None, "2026-12-01", 2, "2026-12-01", "the day asked, nothing was filed yet"),
        (
            None,
            "2026-12-05",
            2,
            "2026-12-07",
            "the day asked, nothing was filed yet; moved to Monday, for 2026-12-05 is a Saturday",
        ),
        ("2026-11-30", "2026-12-01", 2, "2026-12-02", "2 days after pack09 filed on 2026-11-30"),
        ("2026-11-29", "2026-12-01", 2, "2026-12-01", "the day asked, pack09 filed on 2026-11-29"),
        ("2026-11-30", "2026-12-01", 3, "2026-12-03", "3 days after pack09 filed on 2026-11-30"),
        ("2026-11-20", "2026-12-01", 2, "2026-12-01", "the day asked, pack09 filed on 2026-11-20"),
        (
            "2026-12-04",
            "2026-12-04",
            2,
            "2026-12-07",
            "2 days after pack09 filed on 2026-12-04; moved to Monday, for 2026-12-06 is a Sunday",
        ),
    ],
)
def test_the_first_day(world, filed, today, gap, day, why):
    world.add(1)
    if filed:
        world.add(8, filed=datetime.date(2026, 11, 2)).add(9, filed=datetime.date.fromisoformat(filed))
    wave = world.plan(datetime.date.fromisoformat(today), gap=gap).waves[0]
    assert (str(wave.date), wave.why) == (day, why)


def test_what_will_be_too_old_on_its_day_is_said(world):
    world.add(1).add(2).add(3)
    late = TODAY + 29 * DAY
    assert [blocker.rule for blocker in world.why(3, today=late, size=2).by_then] == ["search age"]
    assert world.why(1, today=late, size=2).by_then == ()
