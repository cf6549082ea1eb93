"""The proposal of waves, by its properties over made-up packs, and its rules with an example each."""

import datetime
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import entry
from toy import Toy

from reproducers.desk.blockers import blockers
from reproducers.desk.waves.classes import CLASSES
from reproducers.desk.waves.printing import as_json
from reproducers.desk.waves.proposal import dependencies, propose
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
        """Add a pack; ``filed`` is the day of its filing."""
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

    def propose(self, today=TODAY, size=3, gap=2):
        return propose(self.packs, self.entries, self.classes, today, size, gap)

    def numbers(self, **options):
        return [[pack.number for pack in wave.packs] for wave in self.propose(**options).waves]

    def explained(self, number, **options):
        return next(item for item in self.propose(**options).explanations if item.pack.number == number)


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
    return world, world.propose(case["today"], case["size"], case["gap"])


def order_of(proposal):
    return [pack.number for wave in proposal.waves for pack in wave.packs]


def may_be_filed(world, today):
    """Numbers of packs without a blocker of their own, less those that wait for a pack that cannot come before."""
    filed = {pack.number for pack in world.packs if pack.upstream_state.filed_url}
    able = [pack for pack in world.packs if not blockers(pack, world.entries[pack.id], today)]
    needs = {pack.number: set(dependencies(pack)) - filed for pack in able}
    for _ in world.packs:  # a chain of dependencies is no longer than there are packs; a circle is never resolved
        resolved = {number for number, others in needs.items() if not others}
        needs = {number: others - resolved for number, others in needs.items()}
    return {number for number, others in needs.items() if not others}


@properties
def test_every_ready_pack_is_placed_once_and_every_pack_explained_once(base, case):
    world, proposal = made(base, case)
    placed = order_of(proposal)
    assert sorted(placed) == sorted(may_be_filed(world, case["today"]))
    assert [item.pack.number for item in proposal.explanations] == list(range(1, len(world.packs) + 1))
    wave_of = {pack.number: wave.number for wave in proposal.waves for pack in wave.packs}
    for item in proposal.explanations:
        assert item.wave == wave_of.get(item.pack.number) and item.why
        assert bool(item.blockers) == (item.wave is None) and all(b.what and b.remedy for b in item.blockers)
        assert set(blockers(item.pack, world.entries[item.pack.id], case["today"])) <= set(item.blockers)


@properties
def test_days(base, case):
    world, proposal = made(base, case)
    filed = [pack.upstream_state.filed_on for pack in world.packs if pack.upstream_state.filed_on]
    assert proposal.last_filed == max(filed, default=None)
    earliest = max([case["today"], *(day + case["gap"] * DAY for day in filed)])
    for wave in proposal.waves:
        assert wave.date == next(day for day in (earliest, earliest + DAY, earliest + 2 * DAY) if day.isoweekday() < 6)
        earliest = wave.date + case["gap"] * DAY


@properties
def test_sizes_and_order(base, case):
    world, proposal = made(base, case)
    packs = {pack.number: pack for pack in world.packs}
    left = order_of(proposal)
    key = {n: (CLASSES.index(world.classes[packs[n].id]), n) for n in left}
    for wave in proposal.waves:
        assert 2 <= len(wave.packs) <= case["size"] or (wave is proposal.waves[-1] and len(wave.packs) == 1)
        assert len(wave.packs) == 2 or len({pack.upstream.repo for pack in wave.packs}) == 1
        for place, pack in enumerate(wave.packs):
            free = [n for n in left if not set(dependencies(packs[n])) & set(left)]
            same = [n for n in free if packs[n].upstream.repo == wave.packs[0].upstream.repo]
            assert pack.number in free
            assert pack.number == min(free if place == 0 else same or [pack.number], key=key.get)
            left.remove(pack.number)


@properties
def test_the_same_packs_give_the_same_bytes(base, case):
    world, proposal = made(base, case)
    random.Random(0).shuffle(world.packs)
    again = world.propose(case["today"], case["size"], case["gap"])
    assert as_json(proposal, proposal.waves) == as_json(again, again.waves)


def test_classes_in_order_then_numbers(world):
    for number, kind in enumerate(reversed(CLASSES), 1):
        world.add(number, kind=kind)
    world.add(6, kind="crash fix")
    assert world.numbers(size=4) == [[5, 6, 4, 3], [2, 1]]


def test_a_wave_is_of_the_repository_of_the_first_in_order(world):
    world.add(1, "a", "crash fix").add(2, "b", "crash fix").add(3, "a", "report").add(4, "b", "report")
    assert world.numbers() == [[1, 3], [2, 4]]


def test_none_is_left_alone_where_two_could_go(world):
    for number in range(1, 5):
        world.add(number)
    assert world.numbers() == [[1, 2], [3, 4]] and world.numbers(size=4) == [[1, 2, 3, 4]]
    assert world.add(5).numbers() == [[1, 2, 3], [4, 5]]


def test_a_single_pack_shares_its_wave_first_with_another_single_one(world):
    world.add(1, "a", "crash fix").add(2, "b", "crash fix").add(3, "b").add(4, "c", "report")
    assert world.numbers() == [[1, 4], [2, 3]]


def test_without_another_single_one_the_next_in_order_comes_along(world):
    world.add(1, "a", "crash fix").add(2, "b").add(3, "b").add(4, "b")
    assert world.numbers() == [[1, 2], [3, 4]]


def test_each_place_in_a_wave_has_its_own_reason(world):
    world.add(1, "a").add(2, "b").add(3, "b").add(4, "b").add(5, "c")
    assert world.numbers(size=2) == [[1, 5], [2, 3], [4]]
    assert len({world.explained(number, size=2).why.partition(": ")[2] for number in (1, 2, 3, 4, 5)}) == 5


@pytest.mark.parametrize("field", ["after", "stacked_on"])
def test_a_pack_waits_for_its_dependency(world, field):
    world.add(1, kind="crash fix", **{field: [2]}).add(2, kind="report").add(3, kind="fix").add(4, kind="fix")
    assert world.numbers(size=2) == [[3, 4], [2, 1]] and world.numbers(size=4) == [[3, 4, 2, 1]]
    assert "pack02" in world.explained(1, size=2).why


def test_both_fields_are_heeded(world):
    assert world.add(1, after=[3], stacked_on=[2]).add(2).add(3).numbers() == [[2, 3, 1]]


def test_a_filed_dependency_is_met(world):
    world.add(1, after=[2]).add(2, filed=TODAY)
    assert world.numbers() == [[1]]
    assert [blocker.rule for blocker in world.explained(2).blockers] == ["filed"]


@pytest.mark.parametrize("other", [{"decision": "hold"}, {"decision": "none"}, {"entry": STALE}])
def test_a_pack_that_cannot_be_filed_holds_up_all_after_it(world, other):
    world.add(1, after=[2]).add(2, **other).add(3, after=[1]).add(4)
    assert world.numbers() == [[4]]
    for number, cause in ((1, 2), (3, 1)):
        (blocker,) = world.explained(number).blockers
        drop = f"drop pack{cause:02d} from packs/{number:02d}_made_up/pack.yaml, filing.after"
        assert (blocker.rule, blocker.remedy) == ("dependency", f"do what pack{cause:02d} needs, or {drop}")


def test_a_pack_that_is_not_to_be_filed_waits_for_nothing(world):
    world.add(1, decision="none", after=[2]).add(2, entry=STALE)
    assert [blocker.rule for blocker in world.explained(1).blockers] == ["decision"]


def test_circles_and_unknown_packs_are_explained(world):
    world.add(1, after=[2]).add(2, stacked_on=[1]).add(3, after=[3]).add(4, after=[99]).add(5, after=[1]).add(6)
    assert world.numbers() == [[6]]
    assert {b.rule for number in range(1, 6) for b in world.explained(number).blockers} == {"dependency"}
    (first,), (second,), (itself,), (unknown,) = (world.explained(number).blockers for number in (1, 2, 3, 4))
    assert first.remedy.endswith("drop pack02 from packs/01_made_up/pack.yaml, filing.after")
    assert second.remedy.endswith("drop pack01 from packs/02_made_up/pack.yaml, pins.beside.stacked_on")
    assert itself.remedy.endswith("drop pack03 from packs/03_made_up/pack.yaml, filing.after")
    assert unknown.remedy == "drop pack99 from packs/04_made_up/pack.yaml, filing.after"


@pytest.mark.parametrize(
    "filed, today, gap, day",
    [
        (None, "2026-12-01", 2, "2026-12-01"),
        (None, "2026-12-05", 2, "2026-12-07"),  # a Saturday
        ("2026-11-30", "2026-12-01", 2, "2026-12-02"),
        ("2026-11-30", "2026-12-01", 3, "2026-12-03"),
        ("2026-11-20", "2026-12-01", 2, "2026-12-01"),
        ("2026-12-04", "2026-12-04", 2, "2026-12-07"),  # two days later is a Sunday
    ],
)
def test_the_first_day(world, filed, today, gap, day):
    world.add(1)
    if filed:
        world.add(8, filed=datetime.date(2026, 11, 2)).add(9, filed=datetime.date.fromisoformat(filed))
    assert str(world.propose(datetime.date.fromisoformat(today), gap=gap).waves[0].date) == day
