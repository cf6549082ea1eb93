"""What of a failing case is told: neither rounding nor a refusal, nor what comes once."""

import dataclasses
from pathlib import Path

import hunted
import pytest
import torch

from reproducers.studies.hunt import trying

CASE = trying.Case({"B": 2, "T": 3, "H": 4}, needs=["x", "w"])


class Rounds(hunted.Square):
    """Right but for a rounding that is larger than any limit."""

    @staticmethod
    def forward(ctx, x, w):
        y = hunted.Square.forward(ctx, x, w)
        step = 2e8 * torch.finfo(y.dtype).eps if y.dtype == torch.float64 else 1e-3
        return y + step * (x * 1e6).sin() if y.dtype == torch.float32 else y


def test_rounding_is_not_told():
    target = hunted.target(Rounds)
    (row, *_) = trying.failures(target, Rounds, CASE, ["reference"], hunted.KIT)
    assert row.what == "output 0" and row.error > row.limit
    held, why = trying.confirmed(target, Rounds, CASE, row, hunted.KIT)
    assert not held and why.startswith("rounding")


def test_a_fault_is_told():
    target = hunted.target(hunted.HalfGradient)
    (row,) = trying.failures(target, hunted.HalfGradient, CASE, ["reference"], hunted.KIT)
    assert trying.confirmed(target, hunted.HalfGradient, CASE, row, hunted.KIT) == (True, "")


def test_what_comes_with_one_seed_is_not_told():
    class Once(hunted.Square):
        @staticmethod
        def forward(ctx, x, w):
            return hunted.Square.forward(ctx, x, w) * (2 if x.flatten()[0] == first else 1)

    target = hunted.target(Once)
    first = trying.bench(target, Once, CASE).given()["x"].flatten()[0].clone()
    (row, *_) = trying.failures(target, Once, CASE, ["reference"], hunted.KIT)
    assert trying.confirmed(target, Once, CASE, row, hunted.KIT) == (False, "comes with no other seed")


@pytest.mark.parametrize("said", [ValueError("not of this shape"), AssertionError()])
def test_a_refusal_is_no_crash(said):
    def refuses(x, w):
        raise said

    target = dataclasses.replace(hunted.target(hunted.Square), call=None)
    with pytest.raises(trying.Refused):
        next(trying.failures(target, refuses, CASE, [], str(Path(__file__).parent)))


def test_a_crash_names_its_place():
    case = dataclasses.replace(CASE, sizes={"B": 2, "T": 3, "H": 1})
    (row,) = trying.failures(hunted.target(hunted.Breaks), hunted.Breaks, case, ["runs"], hunted.KIT)
    assert row.relation == "runs" and row.raised.startswith("IndexError in hunted.py:forward")
