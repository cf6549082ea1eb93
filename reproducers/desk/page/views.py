"""What the report page tells, read from packs and receipts; a pure function of them, without a clock."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from packaging.version import Version

from reproducers.base.errors import PatchlaneError
from reproducers.base.verdicts import BROKEN, HEALTHY, Verdict
from reproducers.base.wording import short
from reproducers.desk.blockers import Blocker, blockers, fixes
from reproducers.desk.page import charts as site_charts
from reproducers.desk.page import markup
from reproducers.desk.text.render import render
from reproducers.evidence import manifest
from reproducers.evidence.receipts import alias, newest_of, read
from reproducers.evidence.shelf import chain
from reproducers.record.entry import Entry
from reproducers.record.receipt import ArmName, Check, Details, Host
from reproducers.record.schema import Pack
from reproducers.trial.screen import in_numbers

RELEASE = re.compile(r"\d+(\.\w+)+")


@dataclass(frozen=True)
class Receipt:
    """One receipt: where the site keeps it, and what it says."""

    path: Path
    href: str
    body: Details

    @property
    def tree(self) -> str:
        """The tree that was tried, as its pin names it."""
        return str(self.body.pin.origin) if self.body.pin else self.body.at

    @property
    def seen(self) -> str:
        """What its arms saw, in numbers."""
        return in_numbers(self.body.verdict, self.body.reason, self.body.arms)

    @property
    def log_href(self) -> str:
        return self.href.removesuffix(".json") + ".log"


@dataclass(frozen=True)
class Row:
    """A check without a number and a limit: what each arm that came to it says."""

    name: str
    role: str
    arms: dict[ArmName, Check]


@dataclass(frozen=True)
class LaneView:
    """The newest receipt of a lane at the live pin."""

    name: str
    receipt: Receipt
    charts: list[site_charts.Chart]
    others: list[Row]
    logs: dict[str, str]


@dataclass(frozen=True)
class Standing:
    """How the bug stands upstream: what is the case and, where there is one, the thread that says so."""

    what: str
    url: str = ""


@dataclass(frozen=True)
class PackView:
    """One pack's page."""

    pack: Pack
    entry: Entry
    lanes: list[LaneView]
    history: list[Receipt]
    upstream: list[Standing]
    affected: str
    blockers: list[Blocker]
    files: dict[str, bytes]
    no_reproducer: PatchlaneError | None
    patches: dict[str, Markup]
    body: Markup | None
    no_body: PatchlaneError | None
    notes: Markup | None

    @property
    def page(self) -> str:
        return f"packs/{self.pack.number:02d}.html"

    @property
    def folder(self) -> str:
        """Where the site keeps the pack's files."""
        return f"packs/{self.pack.number:02d}"


@dataclass(frozen=True)
class HostView:
    """One host's page: what it is, what it had installed, and its newest receipt of each pack, lane and tree."""

    alias: str
    facts: list[Host]
    versions: dict[str, list[str]]
    receipts: list[tuple[PackView, Receipt]]

    @property
    def page(self) -> str:
        return f"hosts/{self.alias}.html"


def histories(packs: list[Pack], root: Path) -> dict[str, list[Receipt]]:
    """{pack id: its receipts, oldest first}."""
    return {
        pack.id: [
            Receipt(path, f"receipts/{path.parent.name}/{path.name}", read(path))
            for path in chain(root / f"{pack.number:02d}")
        ]
        for pack in packs
    }


def pack_views(packs: list[Pack], root: Path) -> list[PackView]:
    """All packs; what may be filed is judged on the day of the newest receipt."""
    entries, found = manifest.build(packs, root), histories(packs, root)
    day = taken(found)
    return [_pack_view(pack, entries[pack.id], found[pack.id], root, day) for pack in packs]


def taken(found: dict[str, list[Receipt]]) -> datetime.date:
    """The day of the newest receipt; PatchlaneError when there is none."""
    days = [receipt.body.day for receipts in found.values() for receipt in receipts]
    if not days:
        raise PatchlaneError("there is no receipt to report on", "python -m reproducers.run pack05")
    return max(days)


def _pack_view(pack: Pack, entry: Entry, history: list[Receipt], root: Path, day: datetime.date) -> PackView:
    by_path = {receipt.path: receipt for receipt in history}
    body, no_body = _body(pack, root)
    files, no_reproducer = _files(pack)
    notes = pack.folder / "notes.md"
    return PackView(
        pack=pack,
        entry=entry,
        lanes=[_lane_view(lane, by_path[path]) for lane, path in newest_of(pack, root).items()],
        history=history[::-1],
        upstream=list(standing(pack)),
        affected=affected(entry.tried),
        files=files,
        no_reproducer=no_reproducer,
        blockers=blockers(pack, entry, day),
        patches={path.name: markup.highlight(path.read_text(), "diff") for path in _patches(pack)},
        body=body,
        no_body=no_body,
        notes=markup.markdown(notes.read_text(), 3) if notes.is_file() else None,
    )


def standing(pack: Pack) -> Iterator[Standing]:
    """Where the fix and the reports are upstream, by the pack's threads and its healthy pins."""
    state = pack.upstream_state
    if state.filed_url:
        yield Standing(f"filed as {state.filed}", state.filed_url)
    fixed = fixes(pack)
    for label in (label for label in fixed if not label.startswith("https://")):
        yield Standing(f"fixed in {short(label)}")
    words = {"fixes it": "fix", "overlaps": "fix", "reports it": "report"}
    for thread in state.threads:
        if thread.relation in words and not (thread.relation == "overlaps" and not thread.competes):
            name = thread.url.rsplit("/", 1)[-1][:7]
            number = f"#{name}" if name.isdigit() and "/commit/" not in thread.url else name
            yield Standing(f"{words[thread.relation]} {number} {thread.state}", thread.url)
    if not state.threads:
        yield Standing("nobody has reported it")


def affected(tried: dict[str, Verdict]) -> str:
    """The releases and commits that receipts show with the bug; three releases or more in a row as a range."""
    healthy = [Version(name) for name, word in tried.items() if word in HEALTHY and RELEASE.fullmatch(name)]
    broken = [name for name, word in tried.items() if word in BROKEN]
    releases = sorted((name for name in broken if RELEASE.fullmatch(name)), key=Version)
    others = [short(name) for name in broken if name not in releases]
    if len(releases) > 2 and not any(Version(releases[0]) < one < Version(releases[-1]) for one in healthy):
        releases = [f"{releases[0]} to {releases[-1]} ({len(releases)} tried)"]
    return ", ".join(releases + others)


def _files(pack: Pack) -> tuple[dict[str, bytes], PatchlaneError | None]:
    """What a visitor takes along: the reproducer as one file, or why there is none, and the patches."""
    from reproducers.desk.attachment.export import render as exported

    patches = {f"{pack.id}-{path.name}": path.read_bytes() for path in _patches(pack)}
    try:
        return {f"{pack.id}.py": exported(pack).encode(), **patches}, None
    except PatchlaneError as error:
        return patches, error


def _patches(pack: Pack) -> list[Path]:
    named = [pack.folder / pin.patch for pin in pack.pins.values() if pin.patch]
    return sorted({path for path in [pack.patch, *named] if path.is_file()})


def _body(pack: Pack, root: Path) -> tuple[Markup | None, PatchlaneError | None]:
    try:
        return markup.markdown(render(pack, root), 3), None
    except PatchlaneError as error:
        return None, error


def _lane_view(lane: str, receipt: Receipt) -> LaneView:
    rows: dict[str, Row] = {}
    for arm, check in receipt.body.every_check():
        if not check.numeric:
            rows.setdefault(check.name, Row(check.name, check.role, {})).arms[arm] = check
    log = receipt.path.with_suffix(".log").read_text(errors="replace")
    return LaneView(lane, receipt, site_charts.charts(receipt.body), list(rows.values()), markup.split_log(log))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key that puts h200-2 before h200-10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def host_views(packs: list[PackView]) -> list[HostView]:
    """All hosts that any receipt names, by alias."""
    found: dict[str, list[tuple[PackView, Receipt]]] = {}
    for view in packs:
        for receipt in view.history:
            found.setdefault(alias(receipt.body.host.alias), []).append((view, receipt))
    return [_host_view(name, found[name]) for name in sorted(found, key=natural)]


def _host_view(name: str, receipts: list[tuple[PackView, Receipt]]) -> HostView:
    facts: list[Host] = []
    versions: dict[str, set[str]] = {}
    latest: dict[tuple[object, ...], tuple[PackView, Receipt]] = {}
    for view, receipt in receipts:
        if receipt.body.host not in facts:
            facts.append(receipt.body.host)
        for package, version in receipt.body.versions.items():
            versions.setdefault(package, set()).add(version)
        key = (view.pack.number, receipt.body.lane, receipt.tree, receipt.body.arm)
        latest.setdefault(key, (view, receipt))
    return HostView(name, facts, {key: sorted(versions[key]) for key in sorted(versions)}, list(latest.values()))
