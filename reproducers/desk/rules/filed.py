"""Blockers (`reproducers.desk.blockers`) that lie in the decision itself; proof, age and hold are no faults here."""

from __future__ import annotations

from collections.abc import Iterator

from reproducers.desk.blockers import blockers
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.record.schema import line_of


def _blocked(case: Case, rule_name: str) -> Iterator[Breach]:
    for blocker in blockers(case.pack, case.entry, case.today):
        if blocker.rule == rule_name:
            yield Breach(case.record, line_of(case.record_text, ("filing", "decision")), blocker.what, blocker.remedy)


@rule("filing-fixed", "a bug that upstream has fixed is not filed as an issue or a pull request")
def fixed(case: Case) -> Iterator[Breach | Skip]:
    yield from _blocked(case, "fixed upstream")


@rule("filing-overlap", "beside an open pull request for the same thing only a comment is in place")
def overlap(case: Case) -> Iterator[Breach | Skip]:
    yield from _blocked(case, "open pull request")


@rule("filing-thread", "a comment names its thread")
def thread(case: Case) -> Iterator[Breach | Skip]:
    yield from _blocked(case, "thread")


@rule("filing-patch", "a pull request has a fix to offer")
def patch(case: Case) -> Iterator[Breach | Skip]:
    yield from _blocked(case, "patch")


@rule("filing-until", "a hold says what ends it")
def until(case: Case) -> Iterator[Breach | Skip]:
    filing = case.pack.filing
    if filing.decision == "hold" and filing.until is None:
        line = line_of(case.record_text, ("filing", "decision"))
        yield Breach(
            case.record, line, "the hold has no end", "write filing.until: what ends it, for others to look up"
        )
