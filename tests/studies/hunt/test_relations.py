"""Each relation names its planted fault, and no relation anything of the right function."""

import hunted
import pytest
import tiers

from reproducers.studies.hunt import drawing, relations, trying


def found(function, asked, known=True, count=25):
    """(case, failures) of the first case where one of the relations fails, shrunk; (None, []) where none does."""
    target = hunted.target(function, known)

    def failures(case):
        return [row for row in trying.failures(target, function, case, asked, hunted.KIT) if row.relation in asked]

    case = drawing.first(
        drawing.space(target, None), lambda one: bool(failures(one)), count, 3, 2.0, lambda: float("inf")
    )
    return case, failures(case) if case else []


@pytest.mark.parametrize("relation", tiers.sampled([*hunted.FAULTS], 4))
def test_a_relation_names_its_planted_fault(relation):
    function = hunted.FAULTS[relation]
    case, failures = found(function, [relation])
    assert case is not None and {row.relation for row in failures} == {relation}
    told = [trying.confirmed(hunted.target(function), function, case, row, hunted.KIT) for row in failures]
    assert (True, "") in told


def test_every_relation_has_its_planted_fault():
    assert hunted.FAULTS.keys() == {*relations.RELATIONS, "rows", "runs"}


@pytest.mark.parametrize("known", tiers.sampled([True, False], 2))
def test_the_right_function_is_silent(known):
    every = [*trying.holding(hunted.target(hunted.Square)), "runs"]
    assert found(hunted.Square, every, known, 12) == (None, [])


def test_a_case_is_shrunk():
    case, (row, *_) = found(hunted.HalfGradient, ["reference"])
    assert (case.sizes, case.layouts, case.seed) == ({"B": 1, "T": 1, "H": 1}, {}, 0)
    assert row.what == "gradient of x" and row.error > 1000 * row.limit > 0
