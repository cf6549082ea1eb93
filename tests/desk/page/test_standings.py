"""Answers by release: what receipts say, and nothing of what nobody tried."""

import pytest
from made import details, entry

from reproducers.base.verdicts import Verdict
from reproducers.desk.page.standings import ANSWERS, answers, matrices, told
from reproducers.record.schema import Release

BUG, FINE, OTHER = "REPRODUCED", "FIXED_UPSTREAM", "DIFFERENT_FAILURE"
RELEASE = Release(artifacts={"x-1.whl": "a" * 64})


def test_a_release_without_the_bug_is_fixed_after_one_that_has_it_and_healthy_before():
    tried = {"0.10.0": FINE, "0.9.0": BUG, "0.8.0": FINE, "0.7": OTHER, "a" * 40: BUG, "0.9.0 + 02": BUG}
    found = answers({name: Verdict(word) for name, word in tried.items()})
    assert list(found.items()) == [("0.7", "unknown"), ("0.8.0", "healthy"), ("0.9.0", "bug"), ("0.10.0", "fixed")]
    assert set(found.values()) < set(ANSWERS)


@pytest.mark.parametrize("word", [word for word in Verdict if word.name.startswith(("REPRODUCED", "FIX_"))])
def test_a_patch_that_fails_leaves_the_bug(word):
    assert answers({"1.0": word}) == {"1.0": "bug"}


def test_days_are_those_of_receipts(toy):
    pack = toy.pack()
    rows = [
        details(started=f"2026-11-{day}T00:00:00Z", verdict=word)
        for day, word in (("23", "REPRODUCED_AND_FIXED"), ("21", "UNTESTABLE"), ("25", "REPRODUCED_AND_FIXED"))
    ]
    one = told(pack, entry(), rows)
    assert (one.shown[:10], one.changed[:10]) == ("2026-11-23", "2026-11-25")
    assert (told(pack, entry(), []).shown, told(pack, entry(), []).changed) == ("", "")


def test_a_matrix_has_every_known_release_and_every_pack_with_a_bug(toy):
    pack = toy.pack()
    commits = {"b" * 40: Verdict(BUG), f"{'f' * 40} (built)": Verdict(FINE), f"{'c' * 40} + 02": Verdict(BUG)}
    one = told(pack, entry(**{"1.0": Verdict.REPRODUCED, "1.10": Verdict.FIXED_UPSTREAM, **commits}), [])
    other = told(pack.model_copy(update={"kind": "refactor"}), entry(), [])
    (found,) = matrices([one, other], {"toyup": {"1.9": RELEASE, "1.0": RELEASE}, "elsewhere": {"3": RELEASE}})
    assert (found.distribution, found.releases, found.packs) == ("toyup", ["1.10", "1.9", "1.0"], [one])
    assert one.commits == {"b" * 40: "bug", "f" * 40: "healthy"}
