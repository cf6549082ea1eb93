"""The contents of the report page, read from packs and receipts; without a clock, so the same input gives the same."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from packaging.version import Version

from patchlane.base.errors import PatchlaneError
from patchlane.base.wording import short
from reproducers.base.verdicts import BROKEN, HEALTHY, Verdict
from reproducers.desk.blockers import Blocker, blockers, fixes
from reproducers.desk.page import markup
from reproducers.desk.page.charts import Chart, charts
from reproducers.desk.page.standings import RELEASE, Told, told
from reproducers.desk.text.render import rendered
from reproducers.evidence import manifest, table
from reproducers.evidence.receipts import alias, newest_of, read
from reproducers.evidence.shelf import chain, signature
from reproducers.kept import xz
from reproducers.record.entry import Entry
from reproducers.record.receipt import ArmName, Check, Details, Host
from reproducers.record.schema import Pack
from reproducers.training import reach, runs
from reproducers.trial.screen import in_numbers

DRAWN = 12  # checks of a lane that are drawn; the others stand in a table


@dataclass(frozen=True)
class ReceiptView:
    """A receipt's content ``body``, and its address ``href`` in the site."""

    path: Path
    href: str
    body: Details

    @property
    def tree(self) -> str:
        """The release, commit or name of the tree that was tried."""
        return str(self.body.pin.origin) if self.body.pin else self.body.at

    @property
    def observed(self) -> str:
        """The checks of its arms that the verdict rests on, in numbers."""
        return in_numbers(self.body.verdict, self.body.reason, self.body.arms)

    @property
    def signed(self) -> str:
        """Whether a signature lies beside the receipt, in a word."""
        return "signed" if self.signature_href else "unsigned"

    @property
    def signature_href(self) -> str:
        """Address of the receipt's signature, "" without one."""
        return f"{self.href}.sig" if signature(self.path).is_file() else ""

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    @property
    def log_href(self) -> str:
        return f"{self.href.removesuffix('.json')}.log{xz.SUFFIX}"


@dataclass(frozen=True)
class OtherCheck:
    """A check that is not drawn, as each arm that reached it recorded it."""

    name: str
    role: str
    arms: dict[ArmName, Check]


@dataclass(frozen=True)
class LaneView:
    """The newest receipt of a lane at the live pin."""

    name: str
    receipt: ReceiptView
    charts: list[Chart]
    others: list[OtherCheck]


@dataclass(frozen=True)
class Standing:
    """A fact about the bug upstream, and the thread that shows it, "" if there is none."""

    what: str
    url: str = ""


@dataclass(frozen=True)
class PackView:
    """A pack's page. ``trained``: where training runs its hunks. ``no_reproducer`` and ``no_body`` say why the single
    file and the text could not be made."""

    pack: Pack
    entry: Entry
    lanes: list[LaneView]
    history: list[ReceiptView]
    upstream: list[Standing]
    affected: str
    trained: str
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
        """The site's folder for the pack's files."""
        return f"packs/{self.pack.number:02d}"

    @property
    def told(self) -> Told:
        """The pack by releases, as all of its receipts tell."""
        return told(self.pack, self.entry, (receipt.body for receipt in self.history))


@dataclass(frozen=True)
class HostView:
    """A host on the page of hosts: its hardware, imported versions, and the packs that it gave receipts of.

    ``days``: of its first and its newest receipt.
    """

    alias: str
    facts: list[Host]
    versions: dict[str, list[str]]
    packs: list[tuple[PackView, int]]
    days: tuple[str, str]

    @property
    def receipts(self) -> int:
        return sum(count for _, count in self.packs)


def _history(pack: Pack, root: Path) -> list[ReceiptView]:
    """The pack's receipts, oldest first."""
    paths = chain(root / f"{pack.number:02d}")
    return [ReceiptView(path, f"receipts/{path.parent.name}/{path.name}", read(path)) for path in paths]


def pack_views(packs: list[Pack], root: Path) -> list[PackView]:
    """A page for each pack, with the reasons against filing it on the day of the newest receipt.

    Raises PatchlaneError if there is no receipt.
    """
    entries, histories = dict[str, Entry](), dict[str, list[ReceiptView]]()
    for pack in packs:  # one after the other, for not all statements stay in memory
        entries |= manifest.build([pack], root)
        histories[pack.id] = _history(pack, root)
    days = [receipt.body.day for history in histories.values() for receipt in history]
    if not days:
        raise PatchlaneError("there is no receipt to report on", "python -m reproducers.run pack05")
    trained = reach.found(packs, runs.kept(root))
    cells = {pack.id: table.trained(trained.get(pack.id, {})) for pack in packs}
    return [_pack_view(pack, entries[pack.id], histories[pack.id], root, max(days), cells[pack.id]) for pack in packs]


def _pack_view(
    pack: Pack, entry: Entry, history: list[ReceiptView], root: Path, day: datetime.date, trained: str
) -> PackView:
    by_path = {receipt.path: receipt for receipt in history}
    body, no_body = _body(pack, root, entry)
    files, no_reproducer = _files(pack)
    notes = pack.folder / "notes.md"
    return PackView(
        pack=pack,
        entry=entry,
        lanes=[_lane_view(lane, by_path[path]) for lane, path in newest_of(pack, root).items()],
        history=history[::-1],
        upstream=list(standing(pack)),
        affected=affected(entry.tried),
        trained=trained,
        files=files,
        no_reproducer=no_reproducer,
        blockers=blockers(pack, entry, day),
        patches={path.name: markup.highlight(path.read_text(), "diff") for path in _patches(pack)},
        body=body,
        no_body=no_body,
        notes=markup.markdown(notes.read_text(), 3) if notes.is_file() else None,
    )


def standing(pack: Pack) -> Iterator[Standing]:
    """Facts about the bug upstream, from the pack's threads and its healthy pins."""
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
    """The releases and commits in which receipts show the bug; three releases or more are given as a range."""
    healthy = [Version(name) for name, word in tried.items() if word in HEALTHY and RELEASE.fullmatch(name)]
    broken = [name for name, word in tried.items() if word in BROKEN]
    releases = sorted((name for name in broken if RELEASE.fullmatch(name)), key=Version)
    others = [short(name) for name in broken if name not in releases]
    if len(releases) > 2 and not any(Version(releases[0]) < release < Version(releases[-1]) for release in healthy):
        releases = [f"{releases[0]} to {releases[-1]} ({len(releases)} tried)"]
    return ", ".join(releases + others)


def _files(pack: Pack) -> tuple[dict[str, bytes], PatchlaneError | None]:
    """The files that a visitor can take along: the single file, or why it could not be made, and the patches."""
    from reproducers.desk.attachment.export import render as exported

    patches = {f"{pack.id}-{path.name}": path.read_bytes() for path in _patches(pack)}
    try:
        return {f"{pack.id}.py": exported(pack).encode(), **patches}, None
    except PatchlaneError as error:
        return patches, error


def _patches(pack: Pack) -> list[Path]:
    named = [pack.folder / pin.patch for pin in pack.pins.values() if pin.patch]
    return sorted({path for path in [pack.patch, pack.tests_patch, *named] if path.is_file()})


def _body(pack: Pack, root: Path, entry: Entry) -> tuple[Markup | None, PatchlaneError | None]:
    try:
        return markup.markdown(rendered(pack, root, entry=entry)[0], 3), None
    except PatchlaneError as error:
        return None, error


def _lane_view(lane: str, receipt: ReceiptView) -> LaneView:
    drawn = [chart for chart in charts(receipt.body) if chart.role == "bug"][:DRAWN]
    names, others = {chart.name for chart in drawn}, dict[str, OtherCheck]()
    for arm, check in receipt.body.every_check():
        if check.name not in names:
            others.setdefault(check.name, OtherCheck(check.name, check.role, {})).arms[arm] = check
    return LaneView(lane, receipt, drawn, list(others.values()))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts h200-2 before h200-10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def host_views(packs: list[PackView]) -> list[HostView]:
    """Each host that a receipt names, by alias."""
    hosts: dict[str, list[tuple[PackView, ReceiptView]]] = {}
    for view in packs:
        for receipt in view.history:
            hosts.setdefault(alias(receipt.body.host.alias), []).append((view, receipt))
    return [_host_view(name, hosts[name]) for name in sorted(hosts, key=natural)]


def _host_view(name: str, receipts: list[tuple[PackView, ReceiptView]]) -> HostView:
    facts: list[Host] = []
    versions: dict[str, set[str]] = {}
    counts: dict[int, tuple[PackView, int]] = {}
    for view, receipt in receipts:
        if receipt.body.host not in facts:
            facts.append(receipt.body.host)
        for package, version in receipt.body.versions.items():
            versions.setdefault(package, set()).add(version)
        counts[view.pack.number] = (view, counts.get(view.pack.number, (view, 0))[1] + 1)
    days = [receipt.body.started[:10] for _, receipt in receipts]
    imported = {package: sorted(versions[package]) for package in sorted(versions)}
    return HostView(name, facts, imported, [counts[number] for number in sorted(counts)], (min(days), max(days)))
