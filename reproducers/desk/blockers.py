"""Whether a pack may be filed today and, if not, every reason with its fix: shared by lint, waves, preflight and site.

A pure function of the pack's record, its manifest entry and the date.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

from reproducers.record.entry import Entry
from reproducers.record.schema import Pack, Thread

SEARCH_DAYS = 30
REFRESH = "then python -m reproducers.manifest refresh"


@dataclass(frozen=True)
class Blocker:
    """Why a pack may not be filed: the rule, what is the case, and what ends it."""

    rule: str
    what: str
    remedy: str


def proved(pack: Pack, entry: Entry) -> bool:
    """Whether every lane has a receipt that speaks for the pack as it is and shows what its kind owes."""
    wanted = "reproduced" if pack.kind == "report" else "validated"
    return set(entry.lanes) == set(pack.lanes) and entry.state in (wanted, "filed")


def fixes(pack: Pack) -> list[str]:
    """Where upstream has the fix already: pins known to be healthy, and merged threads that fix it."""
    merged = [t.url for t in pack.upstream_state.threads if t.relation == "fixes it" and t.state == "merged"]
    pins = [str(pin.origin) for name, pin in pack.pins.items() if pack.healthy_at(name) and _later(pack, name)]
    return pins + merged


def _later(pack: Pack, name: str) -> bool:
    """A healthy pin that is not an earlier release than the live one, as the last good one of a regression is."""
    from packaging.version import Version

    live, other = pack.pins["live"].release, pack.pins[name].release
    return live is None or other is None or Version(other) > Version(live)


def competitor(pack: Pack) -> Thread | None:
    """An open pull request for the same thing."""
    return next((thread for thread in pack.upstream_state.threads if thread.competes), None)


def blockers(pack: Pack, entry: Entry, today: datetime.date) -> list[Blocker]:
    """All reasons why ``pack`` may not be filed on that day; ``entry`` is the manifest's. Empty: it may."""
    return [*_decided(pack), *_proof(pack, entry, today), *_overlap(pack), *_looked_up(pack, today)]


def _decided(pack: Pack) -> Iterator[Blocker]:
    decision, state = pack.filing.decision, pack.upstream_state
    edit = f"packs/{pack.folder.name}/pack.yaml, filing"
    if state.filed_url:
        yield Blocker("filed", f"filed as {state.filed} on {state.filed_on}: {state.filed_url}", "nothing")
    if decision in ("hold", "none"):
        yield Blocker("decision", f"{decision}: {pack.filing.reason}", f"{edit}: another decision, with its reason")
    if decision == "comment" and pack.filing.thread not in [thread.url for thread in state.threads]:
        said = "names none" if pack.filing.thread is None else "names one that is not among the threads"
        yield Blocker("thread", f"a comment needs the thread it belongs to, and filing.thread {said}", f"{edit}.thread")
    if decision == "pr" and not pack.patch.is_file():
        yield Blocker("patch", "a pull request needs a fix, and the pack has none", f"{edit}.decision: issue")


def _proof(pack: Pack, entry: Entry, today: datetime.date) -> Iterator[Blocker]:
    if pack.filing.decision in ("hold", "none"):
        return
    if not proved(pack, entry):
        missing = ", ".join(entry.lanes_without_receipt)
        said = f"is {entry.state}" + (f", without a receipt of: {missing}" if missing else "")
        yield Blocker("proof", said, f"python -m reproducers.run {pack.id} --lane LANE, {REFRESH}")
    for lane, found in entry.lanes.items():
        if found.valid_until < today:
            what = f"the {lane} receipt of {found.taken} was valid until {found.valid_until}"
            yield Blocker("receipt age", what, f"python -m reproducers.run {pack.id} --lane {lane}, {REFRESH}")


def _overlap(pack: Pack) -> Iterator[Blocker]:
    if pack.filing.decision not in ("issue", "pr"):
        return
    edit = f"packs/{pack.folder.name}/pack.yaml, filing.decision: comment"
    if found := fixes(pack):
        yield Blocker("fixed upstream", f"fixed in {', '.join(found)}", f"{edit} or none")
    if rival := competitor(pack):
        yield Blocker("open pull request", f"{rival.url} is open for the same thing", f"{edit}, thread: {rival.url}")


def _looked_up(pack: Pack, today: datetime.date) -> Iterator[Blocker]:
    state, limit = pack.upstream_state, today - datetime.timedelta(days=SEARCH_DAYS)
    edit = f"packs/{pack.folder.name}/pack.yaml, upstream_state"
    if state.search.date < limit:
        yield Blocker("search age", f"upstream was searched on {state.search.date}", f"search again: {edit}.search")
    for thread in state.threads:
        if thread.looked_up < limit and thread.state == "open":  # what is merged stays so
            what = f"{thread.url} was looked up on {thread.looked_up}"
            yield Blocker("thread age", what, f"look again: {edit}.threads")
