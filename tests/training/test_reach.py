"""Where training runs each hunk of a patch, by runs that executed some of them."""

import datetime

import pytest
from toy import FIRST, TOTAL, edited

from patchlane.base.files import file_sha256
from reproducers.record.entry import Reach
from reproducers.training import reach
from reproducers.training.runs import Executed, TrainingRun
from reproducers.upstream import patching

TODAY = datetime.date(2026, 11, 28)
NOT, RAN = Executed(False, frozenset()), Executed(True, frozenset())
SAVED = Executed(True, frozenset({"saving"}))


@pytest.fixture
def pack(toy):
    """One with a patch of two hunks: total, and first."""
    return toy.pack(toy.patch(edited(TOTAL, FIRST)))


@pytest.fixture
def run(pack):
    def made(name, *hunks, device="cuda", stack="released", size="full", paths=None, asked=False, day=TODAY):
        patches = {pack.id: file_sha256(pack.patch)}
        return TrainingRun(name, day, device, stack, size, paths or {}, asked, patches, {pack.id: hunks})

    return made


def where(pack, *runs):
    """{hunk: where it runs}."""
    return {name.split()[-1]: found.where for found in reach.of(pack, pack.patch, runs) for name in found.hunks}


def test_what_every_sizes_newest_run_executes_runs_by_default(pack, run):
    old = run("old", RAN, RAN, day=TODAY - datetime.timedelta(1))
    assert where(pack, old, run("new", RAN, NOT)) == {"1": "by default", "2": "in old"}
    assert where(pack, run("a", RAN, RAN), run("b", RAN, NOT, size="siso")) == {"1": "by default", "2": "size full"}
    first, _ = reach.of(pack, pack.patch, [run("a", RAN, NOT), run("c", RAN, NOT, device="cpu")])
    assert (first.default, first.newest, first.run) == (["cpu released", "cuda released"], TODAY, "c")


def test_no_run_has_to_execute_what_imports_alone_executed(pack, run):
    first, second = reach.of(pack, pack.patch, [run("a", RAN, RAN._replace(imported=True))])
    assert (first.where, first.default) == ("by default", ["cuda released"])
    assert (second.where, second.default) == ("by default", [])


def test_what_tells_the_runs_that_execute_it_is_named(pack, run):
    plain = run("plain", RAN, NOT, paths={"loss": "ours", "norm": "te"})
    asked = run("asked", RAN, RAN, paths={"loss": "liger", "norm": "te"}, asked=True)
    assert where(pack, plain, asked)["2"] == "under --path loss=liger"
    two = run("two", RAN, RAN, paths={"loss": "linear", "norm": "te"}, asked=True)
    assert where(pack, plain, asked, two)["2"] == "under --path loss=liger or linear"
    new = run("later", RAN, RAN, paths={"loss": "liger", "norm": "te", "gate": "x"}, asked=True)
    assert where(pack, plain, new)["2"] == "under --path loss=liger", "a part that the others do not know tells nothing"
    assert where(pack, plain, run("other", NOT, RAN, stack="dev"))["2"] == "on stack dev"
    assert where(pack, plain, run("host", NOT, RAN, device="cpu"))["2"] == "on a CPU"
    assert where(pack, plain, run("saves", RAN, SAVED))["2"] == "when saving"


def test_another_architectures_runs_tell_only_where_no_others_run_it(pack, run):
    plain = run("plain", RAN, NOT, paths={"loss": "ours"})
    asked = run("asked", RAN, RAN, paths={"loss": "liger"}, asked=True)
    other = run("other", NOT, NOT, size="small")._replace(other="deepseek_v4")
    assert where(pack, plain, asked, other) == {"1": "by default", "2": "under --path loss=liger"}
    first, second = reach.of(pack, pack.patch, [plain, other._replace(packs={pack.id: (RAN, RAN)})])
    assert (first.where, first.run, first.default) == ("by default", "plain", ["cuda released"])
    assert (second.where, second.run, second.default) == ("in other", "other", [])


def test_a_decorator_is_run_by_the_import(toy, run):
    """Kept runs from before it was known count it as a line of its function."""
    added = "import functools\n\n\n@functools.lru_cache(\n    maxsize=1,\n)\ndef added():\n    return 1\n\n\ndef unused"
    pack = toy.pack(toy.patch(edited(("def unused", added))))
    assert patching.decorators(pack.patch, 1) == [frozenset({3, 4, 5})]

    def seen(*lines):
        patches, hunk = {pack.id: file_sha256(pack.patch)}, RAN._replace(lines=frozenset(lines))
        return where(pack, run("a", hunk)._replace(patches=patches))

    assert seen(3, 4) == {"1": "nowhere"}
    assert seen(3, 7) == seen() == {"1": "by default"}


def test_only_runs_of_the_very_patch_count(pack, run):
    other = run("other", RAN, RAN)._replace(patches={pack.id: "0" * 64})
    assert where(pack, other) == {"1": "nowhere", "2": "nowhere"}
    assert reach.found([pack], [other]) == {}
    assert set(reach.found([pack], [other, run("a", RAN, NOT)])[pack.id]) == {"fix.patch"}


def test_the_packs_word_stands_beside_a_hunk_that_none_executes(pack, run):
    name = reach.names(pack, pack.patch)[1]
    pack = pack.model_copy(update={"untrained": {"fix.patch": {name: "another device"}}})
    assert reach.of(pack, pack.patch, [run("a", RAN, NOT)])[-1] == Reach(
        hunks=[name], where="nowhere", why="another device"
    )


def faults(pack, run, hunks, day=TODAY, untrained=None):
    pack = pack.model_copy(update={"untrained": {"fix.patch": untrained or {}}})
    trained = reach.found([pack], [run("a", *hunks, day=day)])
    return reach.faults([pack], {pack.id: "validated"}, trained)


def test_a_validated_pack_that_no_run_executes_is_a_fault(pack, run, monkeypatch):
    monkeypatch.setattr(reach, "today", lambda: TODAY)
    assert faults(pack, run, (RAN, NOT)) == []
    (nowhere,) = faults(pack, run, (NOT, NOT))
    (old,) = faults(pack, run, (RAN, RAN), day=TODAY - datetime.timedelta(reach.DAYS + 1))
    assert all("pack07" in row and "patched_paths" in row.partition("fix:")[2] for row in (nowhere, old))
    assert "31 days" in old
    assert faults(pack, run, (RAN, RAN), day=TODAY - datetime.timedelta(reach.DAYS)) == []
    assert reach.faults([pack], {pack.id: "stale"}, {}) == []


def test_a_pack_is_trained_where_runs_patch_its_distribution(pack, run, monkeypatch):
    monkeypatch.setattr(reach, "today", lambda: TODAY)
    trained = reach.found([pack], [run("a", RAN, NOT)])

    def validated(distribution):
        other = pack.model_copy(
            update={"number": 8, "upstream": pack.upstream.model_copy(update={"distribution": distribution})}
        )
        return reach.faults([pack, other], {pack.id: "validated", other.id: "validated"}, trained)

    (fault,) = validated(pack.upstream.distribution)
    assert fault.startswith("pack08 ")
    assert validated("another") == []


def test_a_pack_is_not_believed_that_says_otherwise_than_a_run(pack, run, monkeypatch):
    monkeypatch.setattr(reach, "today", lambda: TODAY)
    ran, silent = reach.names(pack, pack.patch)
    assert faults(pack, run, (RAN, NOT), untrained={silent: "why"}) == []
    (executed,) = faults(pack, run, (RAN, NOT), untrained={ran: "why"})
    (unknown,) = faults(pack, run, (RAN, NOT), untrained={"core.py hunk 9": "why"})
    assert faults(pack, run, (NOT, NOT), untrained={ran: "why", silent: "why"}) == []
    (partly,) = faults(pack, run, (NOT, NOT), untrained={silent: "why"})
    assert "patched_paths" in partly
    assert ran in executed and "core.py hunk 9" in unknown and ran in unknown.partition("fix:")[2]
