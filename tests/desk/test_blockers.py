"""Every reason why a pack may not be filed, each alone."""

import datetime

import pytest
from made import entry
from toy import THREAD

from reproducers.desk.blockers import SEARCH_DAYS, blockers
from reproducers.record.schema import Filing, Pin, Search, Thread, load_packs

TODAY = datetime.date(2026, 12, 1)
URL = "https://github.com/example/toyup/pull/3"
ENTRY = entry()


def thread(**changed):
    values = {"url": URL, "relation": "overlaps", "looked_up": TODAY}
    return Thread.model_validate(THREAD | values | changed)


@pytest.fixture
def pack(toy):
    made = toy.pack()
    search = Search(found="none", query="toyup", date=TODAY)
    state = made.upstream_state.model_copy(update={"search": search})
    return made.model_copy(update={"upstream_state": state, "filing": Filing(decision="pr", reason="it is live")})


def filing(pack, **changed):
    return pack.model_copy(update={"filing": pack.filing.model_copy(update=changed)})


def upstream(pack, **changed):
    return pack.model_copy(update={"upstream_state": pack.upstream_state.model_copy(update=changed)})


def rules(pack, given=ENTRY, today=TODAY):
    return [blocker.rule for blocker in blockers(pack, given, today)]


@pytest.mark.parametrize("decision", ["pr", "issue"])
def test_a_proved_pack_of_a_live_bug_may_be_filed(pack, decision):
    assert rules(filing(pack, decision=decision)) == []


def test_a_filed_pack_is_not_filed_again(pack):
    assert rules(upstream(pack, filed="pr", filed_url=URL, filed_on=TODAY)) == ["filed"]


@pytest.mark.parametrize("decision", ["hold", "none"])
def test_a_pack_that_the_decision_keeps_back(pack, decision):
    assert rules(filing(pack, decision=decision), entry("stale")) == ["decision"]


@pytest.mark.parametrize("state", ["draft", "reproduced", "stale", "fixed-upstream(candidate)"])
def test_without_proof(pack, state):
    assert rules(pack, entry(state)) == ["proof"]


def test_a_lane_without_receipt_is_named(pack):
    (blocker,) = blockers(pack, entry("draft", {}, ["cpu"]), TODAY)
    assert blocker.rule == "proof" and blocker.what.endswith(" cpu")


def test_a_receipt_that_is_too_old(pack):
    assert rules(pack, today=datetime.date(2027, 5, 20)) == ["search age"]
    assert rules(pack, today=datetime.date(2027, 5, 21)) == ["receipt age", "search age"]


def test_a_report_owes_no_fix_and_cannot_be_a_pull_request(pack):
    pack.patch.unlink()
    report = pack.model_copy(update={"kind": "report"})
    assert rules(filing(report, decision="issue"), entry("reproduced")) == []
    assert rules(report, entry("reproduced")) == ["patch"]


def test_fixed_upstream_leaves_a_comment(pack):
    fixed = pack.model_copy(update={"pins": pack.pins | {"fixed": Pin(sha="0" * 40)}})
    assert rules(fixed) == ["fixed upstream"]
    merged = upstream(pack, threads=[thread(state="merged", relation="fixes it")])
    assert rules(merged) == ["fixed upstream"]
    assert rules(filing(merged, decision="comment", thread=URL)) == []


def test_an_earlier_release_without_the_bug_is_no_fix(pack):
    artifacts = {"toyup-0.9.tar.gz": "0" * 64}
    pins = {
        "live": Pin(release="1.0", artifacts=artifacts),
        "before": Pin(release="0.9", artifacts=artifacts, expect="healthy"),
    }
    assert rules(pack.model_copy(update={"pins": pins})) == []
    pins["beside"] = Pin(release="1.1", artifacts=artifacts, needs=["other-2"], expect="healthy")  # which may mend it
    assert rules(pack.model_copy(update={"pins": pins})) == []
    pins["after"] = Pin(release="1.1", artifacts=artifacts, expect="healthy")
    assert rules(pack.model_copy(update={"pins": pins})) == ["fixed upstream"]


@pytest.mark.parametrize("relation", ["overlaps", "fixes it"])
def test_beside_an_open_pull_request_only_a_comment(pack, relation):
    pack = upstream(pack, threads=[thread(relation=relation)])
    assert rules(pack) == ["open pull request"]
    assert rules(filing(pack, decision="comment", thread=URL)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"relation": "neighbour"},
        {"relation": "introduced it"},
        {"state": "closed"},
        {"url": URL.replace("pull", "issues"), "relation": "reports it"},
    ],
)
def test_other_threads_do_not_compete(pack, changed):
    assert rules(upstream(pack, threads=[thread(**changed)])) == []


def test_a_comment_belongs_to_a_thread(pack):
    assert rules(filing(pack, decision="comment")) == ["thread"]
    assert rules(filing(pack, decision="comment", thread=URL)) == ["thread"]


def test_old_look_ups(pack):
    old = TODAY - datetime.timedelta(days=SEARCH_DAYS)
    assert rules(upstream(pack, search=Search(found="none", query="x", date=old))) == []
    older = old - datetime.timedelta(days=1)
    assert rules(upstream(pack, search=Search(found="none", query="x", date=older))) == ["search age"]
    assert rules(upstream(pack, threads=[thread(looked_up=older, relation="neighbour")])) == ["thread age"]
    assert rules(upstream(pack, threads=[thread(looked_up=older, state="merged", relation="neighbour")])) == []


@pytest.mark.parametrize("pack", load_packs(), ids=lambda pack: pack.id)
def test_no_pack_is_to_be_filed_against_its_threads(pack):
    barring = rules(pack, today=pack.upstream_state.search.date)
    assert not {"thread", "patch", "fixed upstream", "open pull request"} & set(barring)
