"""What the report page tells, read from packs and receipts; a pure function of them, without a clock."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reproducers import manifest, site_charts, site_markup
from reproducers.errors import PatchlaneError
from reproducers.filing import Blocker, blockers
from reproducers.receipts import alias, chain, newest, read
from reproducers.render import render
from reproducers.schema import Pack

SHA = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")


@dataclass(frozen=True)
class Receipt:
    """One receipt: where the site keeps it, and what it says."""

    path: Path
    href: str
    body: dict[str, Any]

    @property
    def tree(self) -> str:
        """The tree that was tried, as its pin names it."""
        pin = self.body["pin"]
        if pin is None:
            return str(self.body["at"])
        stacked = "".join(f" + {number:02d}" for number in pin.get("stacked_on", []))
        return str(pin.get("release") or f"git {pin['sha']}") + stacked

    @property
    def log_href(self) -> str:
        return self.href.removesuffix(".json") + ".log"


@dataclass(frozen=True)
class LaneView:
    """The newest receipt of a lane at the live pin."""

    name: str
    receipt: Receipt
    charts: list[site_charts.Chart]
    others: list[dict[str, Any]]
    logs: dict[str, str]


@dataclass(frozen=True)
class PackView:
    """One pack's page."""

    pack: Pack
    entry: dict[str, Any]
    lanes: list[LaneView]
    history: list[Receipt]
    blockers: list[Blocker]
    patches: dict[str, Markup]
    body: Markup | None
    no_body: PatchlaneError | None
    notes: Markup | None

    @property
    def page(self) -> str:
        return f"packs/{self.pack.number:02d}.html"


@dataclass(frozen=True)
class HostView:
    """One host's page: what it is, what it had installed, and its newest receipt of each pack, lane and tree."""

    alias: str
    facts: list[dict[str, Any]]
    versions: dict[str, list[str]]
    receipts: list[tuple[PackView, Receipt]]

    @property
    def page(self) -> str:
        return f"hosts/{self.alias}.html"


def short(text: object) -> str:
    """The text with full commit hashes cut to 12 digits."""
    return SHA.sub(r"\1", str(text))


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
    entries, found = manifest.build(packs, root)["packs"], histories(packs, root)
    day = taken(found)
    return [_pack_view(pack, entries[pack.id], found[pack.id], root, day) for pack in packs]


def taken(found: dict[str, list[Receipt]]) -> datetime.date:
    """The day of the newest receipt; PatchlaneError when there is none."""
    days = [str(receipt.body["started"])[:10] for receipts in found.values() for receipt in receipts]
    if not days:
        raise PatchlaneError("there is no receipt to report on", "python -m reproducers.run pack05")
    return datetime.date.fromisoformat(max(days))


def _pack_view(pack: Pack, entry: dict[str, Any], history: list[Receipt], root: Path, day: datetime.date) -> PackView:
    newest_of = {lane: newest(pack, lane, root) for lane in sorted(pack.lanes)}
    by_path = {receipt.path: receipt for receipt in history}
    body, no_body = _body(pack, root)
    notes = pack.folder / "notes.md"
    return PackView(
        pack=pack,
        entry=entry,
        lanes=[_lane_view(lane, by_path[path]) for lane, path in newest_of.items() if path],
        history=history[::-1],
        blockers=blockers(pack, entry, day),
        patches={path.name: site_markup.highlight(path.read_text(), "diff") for path in _patches(pack)},
        body=body,
        no_body=no_body,
        notes=site_markup.markdown(notes.read_text(), 3) if notes.is_file() else None,
    )


def _patches(pack: Pack) -> list[Path]:
    named = [pack.folder / pin.patch for pin in pack.pins.values() if pin.patch]
    return sorted({path for path in [pack.patch, *named] if path.is_file()})


def _body(pack: Pack, root: Path) -> tuple[Markup | None, PatchlaneError | None]:
    try:
        return site_markup.markdown(render(pack, root), 3), None
    except PatchlaneError as error:
        return None, error


def _lane_view(lane: str, receipt: Receipt) -> LaneView:
    rows: dict[str, dict[str, Any]] = {}
    for arm, check in site_charts.checks(receipt.body):
        if not site_charts.numeric(check):
            rows.setdefault(check["name"], {"name": check["name"], "role": check["role"], "arms": {}})
            rows[check["name"]]["arms"][arm] = check
    log = receipt.path.with_suffix(".log").read_text(errors="replace")
    return LaneView(lane, receipt, site_charts.charts(receipt.body), list(rows.values()), site_markup.split_log(log))


def host_views(packs: list[PackView]) -> list[HostView]:
    """All hosts that any receipt names, by alias."""
    found: dict[str, list[tuple[PackView, Receipt]]] = {}
    for view in packs:
        for receipt in view.history:
            found.setdefault(alias(receipt.body["host"]["alias"]), []).append((view, receipt))
    return [_host_view(name, found[name]) for name in sorted(found)]


def _host_view(name: str, receipts: list[tuple[PackView, Receipt]]) -> HostView:
    facts: list[dict[str, Any]] = []
    versions: dict[str, set[str]] = {}
    latest: dict[tuple[Any, ...], tuple[PackView, Receipt]] = {}
    for view, receipt in receipts:
        if receipt.body["host"] not in facts:
            facts.append(receipt.body["host"])
        for package, version in receipt.body["versions"].items():
            versions.setdefault(package, set()).add(str(version))
        key = (view.pack.number, receipt.body["lane"], receipt.tree, receipt.body["arm"])
        latest.setdefault(key, (view, receipt))
    return HostView(name, facts, {key: sorted(versions[key]) for key in sorted(versions)}, list(latest.values()))
