"""What the manifest says of a release after its pristine arm alone was run again, and of a pack asked for twice."""

import dataclasses

import pytest
from toy import FIRST, TOTAL, edited

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.evidence import manifest, receipts
from reproducers.evidence.manifest import _place, affected, entry_of


def test_the_pristine_arm_takes_nothing_from_the_patch(toy, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    pack = toy.pack()
    broken = edited(("def total(values):", "def total(values, raises=len()):"))
    trees = [None, edited(TOTAL, FIRST), broken]
    runs = [toy.run(pack), *(toy.run(pack, *([tree] if tree else []), arm="pristine") for tree in trees)]
    assert runs[-1].ruling.verdict is Verdict.DIFFERENT_FAILURE, runs[-1].ruling
    paths = [receipts.write(run, toy.root / "out", "toy", [], {}) for run in runs]
    words = [[word.value for word in affected(pack, paths[: count + 1]).values()] for count in range(4)]
    assert words[:2] == [["REPRODUCED_AND_FIXED"]] * 2 and words[2:] == [["FIXED_UPSTREAM"]] * 2
    assert [*affected(pack, paths[1:2]).values()] == ["REPRODUCED"]
    assert [*affected(pack, paths[3:]).values()] == ["DIFFERENT_FAILURE"], "where nothing else is known"


def test_a_tree_beside_other_needs_is_one_of_its_own(toy, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    pack = toy.pack()
    pins = {**pack.pins, "newest": pack.pins["live"].model_copy(update={"needs": ["engine-2.0"]})}
    pack = pack.model_copy(update={"pins": pins})
    fixed = edited(TOTAL, FIRST)
    runs = [toy.run(pack), toy.run(pack, fixed, arm="pristine")]
    runs[1].request = dataclasses.replace(runs[1].request, at="newest")
    paths = [receipts.write(run, toy.root / "out", "toy", [], {}) for run in runs]
    (alone, word), (beside, other) = affected(pack, paths).items()
    assert beside == f"{alone} beside engine-2.0"
    assert (word, other) == (Verdict.REPRODUCED_AND_FIXED, Verdict.FIXED_UPSTREAM)


def test_releases_stand_in_their_order():
    trees = [
        "0.9.0",
        "0.10.0",
        "0.10.0 + 02",
        "0.10.0 beside engine-2.0",
        "0.10.0.post1",
        "0.10.1",
        "027fa4aabac5",
        "d98e8a64ddf3",
    ]
    assert sorted(sorted(trees), key=_place) == trees


@pytest.fixture
def taken(toy, monkeypatch):
    """A pack with one receipt, its entry derived once; what derives it a second time is counted."""
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    pack, times = toy.pack(), []
    path = receipts.write(toy.run(pack), toy.root / "out", "toy", [], {})
    first = entry_of(pack, toy.root / "out")
    derive = manifest.derived
    monkeypatch.setattr(manifest, "derived", lambda *of: (times.append(of), derive(*of))[1])
    return pack, path, first, times


def test_an_entry_is_derived_once_from_the_same_files(toy, taken):
    pack, _, first, times = taken
    assert entry_of(pack, toy.root / "out") == first and first.state == "validated" and not times


@pytest.mark.parametrize("file", ["statement", "log"])
def test_what_is_kept_hides_no_altered_receipt(toy, taken, file):
    pack, path, _, _ = taken
    path = path if file == "statement" else path.with_suffix(".log")
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(PatchlaneError, match="altered"):
        entry_of(pack, toy.root / "out")


def test_an_entry_follows_the_packs_files_and_its_receipts(toy, taken):
    pack, path, _, times = taken
    pack.patch.write_text(pack.patch.read_text() + "\n")
    assert entry_of(pack, toy.root / "out").state == "stale"
    assert entry_of(pack.model_copy(update={"title": "another"}), toy.root / "out").title == "another"
    path.unlink(), path.with_suffix(".log").unlink()
    assert entry_of(pack, toy.root / "out").state == "draft" and len(times) == 3


def test_a_store_that_can_only_be_read_keeps_nothing(toy, taken, monkeypatch):
    pack, _, first, times = taken
    (toy.root / "file").write_text("")
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "file"))
    assert entry_of(pack, toy.root / "out") == entry_of(pack, toy.root / "out") == first and len(times) == 2


def test_the_manifest_itself_believes_no_store(toy, taken):
    pack, _, first, _ = taken
    (kept,) = (toy.root / "store" / "cache" / "entries").iterdir()
    kept.write_text(first.model_copy(update={"state": "draft"}).model_dump_json())
    assert entry_of(pack, toy.root / "out").state == "draft"
    assert manifest.content_of([pack], toy.root / "out").packs[pack.id] == first
