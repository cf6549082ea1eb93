"""Every reason why a pack may not be filed today, with its remedy: for lint, waves, preflight and site.

A pure function of the pack's record, its manifest entry and the date.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

from reproducers.base.verdicts import HEALTHY, Verdict
from reproducers.record.entry import Entry
from reproducers.record.schema import Pack

SEARCH_DAYS = 30
REFRESH = "then python -m reproducers.manifest refresh"


@dataclass(frozen=True)
class Blocker:
    """Why a pack may not be filed: the rule that stands against it, the fact, and what to do about it."""

    rule: str
    what: str
    remedy: str


def fixes(pack: Pack) -> list[str]:
    """Where upstream has the fix: the origins of healthy pins, and the URLs of merged threads that fix the bug."""
    merged = [t.url for t in pack.upstream_state.threads if t.relation == "fixes it" and t.state == "merged"]
    pins = [str(pin.origin) for name, pin in pack.pins.items() if pack.healthy_at(name) and _later(pack, name)]
    return pins + merged


def _later(pack: Pack, name: str) -> bool:
    """Whether the pin is a later release than the live one, or a commit; releases before a regression have no bug.

    A pin beside other needs than the live one's says nothing: it may be they that mend the bug.
    """
    from packaging.version import Version

    if name != "fixed" and set(pack.pins[name].needs) != set(pack.pins["live"].needs):
        return False
    live, other = pack.pins["live"].release, pack.pins[name].release
    return live is None or other is None or Version(other) > Version(live)


def blockers(pack: Pack, entry: Entry, today: datetime.date) -> list[Blocker]:
    """All reasons why ``pack`` may not be filed on the day ``today``, none if it may; ``entry`` is the manifest's."""
    return [*_decided(pack), *_proof(pack, entry, today), *_overlap(pack, entry), *_looked_up(pack, today)]


def _decided(pack: Pack) -> Iterator[Blocker]:
    decision, state = pack.filing.decision, pack.upstream_state
    edit = f"packs/{pack.folder.name}/pack.yaml, filing"
    if state.filed_url:
        yield Blocker("filed", f"filed as {state.filed} on {state.filed_on}: {state.filed_url}", "nothing")
    if decision in ("hold", "none"):
        until = f"; until: {pack.filing.until}" if pack.filing.until else ""
        said = f"{decision}: {pack.filing.reason}{until}"
        yield Blocker("decision", said, f"{edit}: another decision, with its reason")
    if decision == "comment" and pack.filing.thread not in [thread.url for thread in state.threads]:
        fault = "is empty" if pack.filing.thread is None else "is none of upstream_state.threads"
        yield Blocker("thread", f"a comment belongs to a thread, and filing.thread {fault}", f"{edit}.thread")
    if decision == "pr" and not pack.patch.is_file():
        yield Blocker("patch", "a pull request needs a fix, and the pack has none", f"{edit}.decision: issue")


def _proof(pack: Pack, entry: Entry, today: datetime.date) -> Iterator[Blocker]:
    if pack.filing.decision in ("hold", "none"):
        return
    wanted = "reproduced" if pack.kind == "report" else "validated"
    if set(entry.lanes) != set(pack.lanes) or entry.state not in (wanted, "filed"):
        missing = ", ".join(entry.lanes_without_receipt)
        what = f"is {entry.state}" + (f", no receipt of lane {missing}" if missing else "")
        yield Blocker("proof", what, f"python -m reproducers.run {pack.id} --lane LANE, {REFRESH}")
    for lane, newest in entry.lanes.items():
        if newest.valid_until < today:
            what = f"the {lane} receipt of {newest.taken} was valid until {newest.valid_until}"
            yield Blocker("receipt age", what, f"python -m reproducers.run {pack.id} --lane {lane}, {REFRESH}")


def releases_tried(entry: Entry) -> dict[str, Verdict]:
    """{release: newest verdict} of the releases that receipts tried by themselves, oldest first."""
    from packaging.version import InvalidVersion, Version

    found: dict[Version, tuple[str, Verdict]] = {}
    for name, verdict in entry.tried.items():
        try:
            found[Version(name)] = (name, verdict)
        except InvalidVersion:  # a commit, or a release on other packs or needs
            continue
    return dict(found[version] for version in sorted(found))


def _overlap(pack: Pack, entry: Entry) -> Iterator[Blocker]:
    if pack.filing.decision not in ("issue", "pr"):
        return
    edit = f"packs/{pack.folder.name}/pack.yaml, filing.decision: comment"
    if places := fixes(pack):
        yield Blocker("fixed upstream", f"fixed in {', '.join(places)}", f"{edit} or none")
    elif pack.pins[pack.filing_pin].release and (tried := releases_tried(entry)):
        last, verdict = list(tried.items())[-1]
        if verdict in HEALTHY:
            what = f"a receipt says that {last} is healthy: set pins.fixed to the first such release"
            yield Blocker("fixed upstream", what, f"{edit} or none")
    if rival := next((thread for thread in pack.upstream_state.threads if thread.competes), None):
        yield Blocker("open pull request", f"{rival.url} is open for the same thing", f"{edit}, thread: {rival.url}")


def _looked_up(pack: Pack, today: datetime.date) -> Iterator[Blocker]:
    state, limit = pack.upstream_state, today - datetime.timedelta(days=SEARCH_DAYS)
    edit = f"packs/{pack.folder.name}/pack.yaml, upstream_state"
    if state.search.date < limit:
        yield Blocker("search age", f"upstream was searched on {state.search.date}", f"search again: {edit}.search")
    for thread in state.threads:
        if thread.looked_up < limit and thread.state == "open":  # a merged one stays merged
            what = f"{thread.url} was looked up on {thread.looked_up}"
            yield Blocker("thread age", what, f"look again: {edit}.threads")
