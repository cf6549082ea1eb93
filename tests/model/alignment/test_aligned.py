"""What cannot be aligned, and how many draws there are."""

import sys

import pytest

from model.alignment import aligned
from model.alignment.comparison import Row, Tie
from model.families.sizes import SIZES
from patchlane.base.errors import CannotTestHere, PatchlaneError


def test_every_family_has_a_reference():
    assert all(size.references for size in SIZES.values())
    assert set(aligned.OFFERED) == {"v4_tiny", "nam56r_tiny", "nam56r_siso"}


@pytest.mark.parametrize(
    ("name", "against", "tokens", "remedy"),
    [
        ("v4_tiny", "vllm", 51, "--against transformers"),
        ("nam56r_tiny", "transformers", 51, "--against formulas"),
        ("v4_small", "transformers", 1000, ", v4_tiny"),
        ("nam56r", "formulas", 1000, "one of: nam56r_tiny, "),
        ("nam56r_siso", "formulas", 32, "--tokens 33"),
        ("v4_tiny", "transformers", 36, "--tokens 37"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_what_can(name, against, tokens, remedy):
    with pytest.raises(PatchlaneError) as refused:
        aligned.reference(SIZES[name], against, tokens)
    assert remedy in refused.value.remedy


def test_a_missing_library_comes_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CannotTestHere) as refused:
        aligned.reference(SIZES["v4_tiny"], "transformers", 51)
    assert refused.value.remedy == "pip install transformers==5.24.0"


def test_another_version_of_it_is_refused(monkeypatch):
    from types import ModuleType

    other = ModuleType("transformers")
    other.__version__ = "5.25.0"
    monkeypatch.setitem(sys.modules, "transformers", other)
    with pytest.raises(CannotTestHere, match=r"5\.25\.0"):
        aligned.reference(SIZES["v4_tiny"], "transformers", 51)


class Made:
    documents, variants = 2, 2


def drawn(complete, draws=2, differs=False):
    """The alignment of seeds of which those of ``complete`` have no tie, and the (variant, seed) that were drawn."""
    asked = []

    def rows(variant, seed):
        asked.append((variant, seed))
        plain = {"layer": "1", "kind": "values", "against": "r", "limit": 1e-5}
        tie = () if seed in complete else (Tie(seed=seed, token=3, margin=0.0),)
        off = 1.0 if differs and seed == 12 else 0.0
        later = Row(module="next", draws=int(seed in complete), off=off, **plain)
        return [Row(module="top-k", ties=tie, **plain), later]

    return aligned.drawn(Made(), "v4_tiny", "r", 10, draws, 51, rows), asked


def test_draws_go_on_until_each_variant_has_enough_without_a_tie():
    found, asked = drawn({10, 13, 14, 17})
    assert asked == [(0, 10), (1, 11), (0, 12), (1, 13), (0, 14), (1, 15), (1, 17)]
    assert found.holds and found.complete == (2, 2) and found.draws == 7
    assert [tie.seed for tie in found.rows[0].ties] == [11, 12, 15] and found.rows[1].draws == 4


def test_too_few_draws_without_a_tie_do_not_hold():
    found, asked = drawn(range(10, 200, 2))  # none of the second variant
    assert found.complete == (2, 0) and not found.holds and found.first is None
    assert len(asked) == 2 + aligned.TRIES * 2


def test_one_draw_that_differs_does_not_hold():
    found, _ = drawn(range(10, 20), differs=True)
    assert not found.holds and found.first.module == "next" and found.said()["first"]["verdict"] == "differs"
