"""The committed fingerprints are what receipts, patches and trees give."""

import json

import pytest

from patchlane.known.index import Index, load, path_in
from reproducers.base.verdicts import Verdict
from reproducers.evidence import receipts
from reproducers.record.schema import ROOT, Pin, load_packs
from reproducers.studies.installed.known import Faults, Tried, made, path_of, tried
from reproducers.upstream.store import Store

NONE = Index(2, "2026-01-01", {})
TREE = Pin(release="1.0", artifacts={"x.whl": "0" * 64})


def test_the_committed_file_is_what_the_trees_give():
    packs = load_packs()
    committed = load(path_of(packs)).index
    store = Store(offline=True)
    if not any((store.root / "trees").glob("*.json")):
        pytest.skip("no tree is in the store")
    fresh, _ = made(packs, ROOT / "receipts", store, committed)
    assert fresh == committed, "python -m reproducers.audit --write"


def test_every_bug_has_its_fingerprint_and_each_patch_its_functions():
    packs = load_packs()
    known = load(path_of(packs)).index.packs
    assert set(known) == {pack.id for pack in packs if pack.names_bug}
    assert {"pack04", "pack07", "pack14"}.isdisjoint(known)
    for pack in packs:
        if pack.id in known and pack.patch.is_file():
            states = {tree.state for tree in known[pack.id].trees}
            assert known[pack.id].functions and states >= {"buggy", "patched"}, pack.id


def test_no_tree_is_buggy_and_healthy_unless_what_is_beside_it_tells():
    """Upstream's own fix may be the pack's, letter by letter: then a tree is patched and fixed."""
    for name, known in load(path_in()).packs.items():
        if known.functions:
            states = {}
            for tree in known.trees:
                key = (tuple(sorted(tree.code.items())), tuple(sorted(tree.beside.items())))
                assert states.setdefault(key, tree.state == "buggy") == (tree.state == "buggy"), name


def test_what_needs_decide_is_stated():
    known = load(path_in()).packs
    beside = {name for name, each in known.items() if any(tree.beside for tree in each.trees)}
    assert beside == {"pack34"}


def wrong(packs, root):
    """What the file of fingerprints says that receipts do not, of all packs."""
    found = Faults(packs, root)
    for pack in packs:
        found.look(pack)
    return found.rows()


def test_what_the_committed_file_says_of_trees_follows_from_receipts_without_any_tree(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(tmp_path))
    assert wrong(load_packs(), ROOT / "receipts") == []


def flip(tree):
    tree["state"] = "fixed" if tree["state"] == "buggy" else "buggy"


def another_release(tree):
    tree["name"] = tree["release"] = "9.9"


def without_patch(tree):
    del tree["patch"]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("change", [flip, another_release, without_patch, lambda tree: tree.update(beside={"x": "1"})])
def test_a_state_that_no_receipt_says_is_named(ran, change, place):
    toy, pack, folder = ran
    path = path_of([pack])
    path.write_text(made([pack], folder, toy.store, NONE)[0].text)
    assert wrong([pack], folder) == []
    body = json.loads(path.read_text())
    change(body["packs"]["pack07"]["trees"][place])
    path.write_text(json.dumps(body))
    assert wrong([pack], folder) and all("pack07" in row and "audit --write" in row for row in wrong([pack], folder))
    del body["packs"]["pack07"]["trees"][place]
    path.write_text(json.dumps(body))
    assert len(wrong([pack], folder)) == 1


@pytest.fixture
def ran(toy):
    """The toy's pack with a receipt of both arms, and the folder of receipts."""
    pack = toy.pack()
    run = toy.run(pack)
    folder = toy.root / "receipts"
    receipts.write(run, folder, "toy", [], {})
    return toy, pack, folder


def test_a_toy_from_its_receipt(ran):
    toy, pack, folder = ran
    known, wanting = made([pack], folder, toy.store, NONE)
    buggy, patched = known.packs["pack07"].trees
    assert wanting == []
    assert (buggy.name, buggy.state, buggy.patch) == ("1.0", "buggy", "fix.patch")
    assert (patched.name, patched.state, patched.patch) == ("1.0", "patched", "fix.patch")
    assert known.packs["pack07"].functions == ["toyup/core.py:first", "toyup/core.py:total"]
    assert all(buggy.code[name] != patched.code[name] for name in buggy.code)


def test_a_tree_that_is_gone_keeps_what_was_known(ran, monkeypatch):
    toy, pack, folder = ran
    before, _ = made([pack], folder, toy.store, NONE)
    for path in toy.store.root.glob("trees/*.json"):
        path.unlink()
    kept, wanting = made([pack], folder, toy.store, before)
    assert kept == before and wanting == ["pack07 at 1.0"]
    assert made([pack], folder, toy.store, NONE)[0].packs == {}


def test_a_patch_that_changed_since_mends_nothing(ran):
    toy, pack, folder = ran
    pack.patch.write_text(pack.patch.read_text() + "\n")
    assert [each.patch for each in tried(pack, folder)] == [None]
    (tree,) = made([pack], folder, toy.store, NONE)[0].packs["pack07"].trees
    assert (tree.state, tree.code) == ("buggy", {})


@pytest.mark.parametrize(
    ("verdicts", "state", "mended"),
    [
        (["REPRODUCED_AND_FIXED", "REPRODUCED_AND_FIXED"], "buggy", True),
        (["REPRODUCED_AND_FIXED", "REPRODUCED"], "buggy", True),
        (["REPRODUCED_AND_FIXED", "FIX_REGRESSES"], "buggy", False),
        (["FIXED_UPSTREAM"], "fixed", False),
        (["FIXED_UPSTREAM", "REPRODUCED"], None, False),
        (["DIFFERENT_FAILURE"], None, False),
        ([], None, False),
    ],
)
def test_lanes_that_disagree_say_nothing(verdicts, state, mended, tmp_path):
    lanes = dict(zip(("cpu", "cuda"), map(Verdict, verdicts), strict=False))
    seen = Tried(TREE, (), lanes, dict.fromkeys(lanes, tmp_path))
    assert (seen.state, seen.patch is not None) == (state, mended)
