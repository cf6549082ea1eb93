"""What --at asks for, and what the tree that ran is said to be."""

import dataclasses
import json

import pytest
from toy import FIRST, PUBLISHED, RECORD, SOURCE, TOTAL, edited, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.trial.experiment import Request, execute, expected
from reproducers.upstream import index, pins

PINNED = "a" * 40  # pins.live.sha of the toy
FIXED = RECORD.replace("lanes:\n", '  fixed:\n    release: "2.0"\nlanes:\n', 1)
BOTH = PUBLISHED + '  "2.0":\n    artifacts: {x.whl: ' + "d" * 64 + "}\n"


@pytest.fixture
def clone(toy):
    """A clone with a tag, and the SHA of its one commit."""
    repo = write_tree(toy.root / "clone", SOURCE)
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "one", cwd=repo)
    git("tag", "v0.9", cwd=repo)
    return repo, git("rev-parse", "HEAD", cwd=repo).strip()


@pytest.mark.parametrize("at", ["live", "1.0", "v1.0", "core_v1.0", PINNED, "aaaaaaa", "a" * 12])
def test_a_pin_by_any_of_its_names(toy, at):
    assert pins.settle(toy.pack(), at) == "live"


@pytest.mark.parametrize(("at", "settled"), [("0.8.5", "0.8.5"), ("v2.3.2.post1", "2.3.2.post1"), ("b" * 40, "b" * 40)])
def test_a_release_and_a_full_sha(toy, at, settled):
    assert pins.settle(toy.pack(), at) == settled


@pytest.mark.parametrize("at", ["", " ", "main", "fixed", "bbbbbbb", "aaaaaa", "upstream", "HEAD", "-x", "v"])
def test_anything_else_is_refused(toy, clone, at):
    folder = None if at == "upstream" else clone[0]
    for place in (None, folder, toy.root / "absent"):
        if not (at == "upstream" and place):
            with pytest.raises(PatchlaneError) as refused:
                pins.settle(toy.pack(), at, place)
            assert refused.value.exit_code == 2


def test_a_prefix_of_two_pins_is_refused(toy):
    other = f"  other:\n    sha: {'a' * 39}b\nlanes:\n"
    pack = toy.pack(record=RECORD.replace("lanes:\n", other, 1))
    assert pins.settle(pack, "a" * 39 + "b") == "other"
    with pytest.raises(PatchlaneError):
        pins.settle(pack, "a" * 10)


def test_a_clone_knows_its_commits_and_tags(toy, clone):
    repo, sha = clone
    for at in (sha[:7], "v0.9", "0.9", sha):
        assert pins.settle(toy.pack(), at, repo) == sha


def at_of(toy, folder, **request):
    run = execute(
        toy.pack(), Request(**{"at": "upstream", "upstream": folder, **request}), toy.store, lambda *event: None
    )
    return run, (run.request.at, run.pin and str(run.pin.origin))


def test_a_commit_is_booked_under_its_sha(toy, clone):
    repo, sha = clone
    run, booked = at_of(toy, repo)
    assert booked == (sha, f"git {sha}")
    assert run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED
    assert at_of(toy, repo, at=sha[:9])[1] == booked


def test_a_pinned_commit_is_booked_under_its_pin(toy, clone):
    repo, sha = clone
    toy.publishes(PUBLISHED.replace(PINNED, sha))
    pack = toy.pack()
    run = execute(pack, Request("upstream", upstream=repo), toy.store, lambda *event: None)
    assert (run.request.at, run.pin, str(run.tree.origin)) == ("live", pack.pins["live"], f"git {sha}")


def test_a_folder_is_no_pin_unless_it_is_the_release(toy, clone):
    write_tree(toy.upstream, SOURCE)
    assert at_of(toy, toy.upstream)[1] == ("upstream", None)
    toy.publish()
    run, booked = at_of(toy, toy.upstream)
    assert (booked, str(run.tree.origin), run.artifact) == (("live", "1.0"), "toyup 1.0", "b" * 64)
    write_tree(toy.upstream, edited(FIRST))
    assert at_of(toy, toy.upstream)[1] == ("upstream", None)


def test_a_checkout_with_changes_is_no_commit(toy, clone):
    repo, sha = clone
    write_tree(repo, edited(FIRST))
    run, booked = at_of(toy, repo, allow_dirty=True)
    assert (booked, str(run.tree.origin)) == (("upstream", None), f"git {sha} (dirty)")


def test_a_pin_is_taken_from_the_clone_or_not_at_all(toy, clone):
    repo, sha = clone
    write_tree(toy.upstream, SOURCE)
    with pytest.raises(PatchlaneError):
        at_of(toy, toy.upstream, at="live")
    write_tree(repo, edited(TOTAL, FIRST))
    git("commit", "-qam", "two", cwd=repo)
    run, booked = at_of(toy, repo, at="0.9")
    assert (booked, run.ruling.verdict) == ((sha, f"git {sha}"), Verdict.REPRODUCED_AND_FIXED)


@pytest.mark.parametrize("at", ["upstream", "b" * 40])
def test_a_tree_of_which_nothing_is_claimed_is_not_contradicted_by_its_health(toy, at):
    pack = toy.pack()
    for arm in ("both", "pristine"):
        assert {Verdict.FIXED_UPSTREAM, Verdict.PATCH_STALE} < expected(pack, Request(at, arm=arm))
        assert expected(pack, Request(at, arm=arm)).isdisjoint({Verdict.FIX_REGRESSES, Verdict.DIFFERENT_FAILURE})
    assert expected(pack, Request("live")) == {Verdict.REPRODUCED_AND_FIXED}


@pytest.mark.parametrize(
    ("at", "healthy"),
    [("fixed", True), ("2.0.1", True), ("10.0", True), ("1.5", False), ("0.9", False), ("1.0", False)],
)
def test_a_release_after_the_fixed_one_is_expected_to_be_healthy(toy, at, healthy):
    toy.publishes(BOTH)
    assert (expected(toy.pack(record=FIXED), Request(at)) == {Verdict.FIXED_UPSTREAM}) is healthy


def test_a_fix_before_the_live_pin_says_nothing_of_later_releases(toy):
    toy.publishes(BOTH.replace('"2.0"', '"0.5"'))
    pack = toy.pack(record=FIXED.replace('"2.0"', '"0.5"'))
    assert expected(pack, Request("1.5")) == {Verdict.REPRODUCED_AND_FIXED}


def test_a_damaged_record_of_the_store_is_no_digest(toy):
    toy.publish()
    assert pins.stored_digest(toy.store, "b" * 64)
    write_tree(toy.store.root / "trees", {"b" * 64 + ".json": json.dumps({})})
    assert pins.stored_digest(toy.store, "b" * 64) is None
    assert pins.stored_digest(toy.store, "c" * 64) is None


def test_an_offline_store_asks_no_index_for_a_release(toy, monkeypatch):
    monkeypatch.setattr(index, "release_files", lambda *asked: pytest.fail("the index was asked"))
    run = execute(toy.pack(), Request("3.0"), toy.store, lambda *event: None)
    assert run.ruling.verdict is Verdict.UNTESTABLE and run.tree is None


def test_the_probes_options_are_not_runs(toy):
    toy.publish({"other/__init__.py": ""})
    run = execute(toy.pack(), Request(), toy.store, lambda *event: None)
    assert run.ruling.verdict is Verdict.UNTESTABLE
    assert "--upstream DIR" in run.ruling.remedy and "--tree" not in run.ruling.remedy
    assert dataclasses.asdict(run.request)["at"] == "live"
