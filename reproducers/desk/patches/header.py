"""The DEP-3 header of an exported patch, generated from pack.yaml and receipts, and the mail that ``git am`` takes.

Committed patches keep their short header: receipts hold their digests. What is generated is read back by ``parse``.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256
from reproducers.desk.patches import mail as patch_mail
from reproducers.desk.patches import short_header
from reproducers.desk.patches.fields import Status
from reproducers.desk.patches.record import Header, due, fixing
from reproducers.evidence.receipts import digests, newest_of, read
from reproducers.record.entry import Entry
from reproducers.record.schema import Pack

__all__ = ["Header", "header", "mail", "parse"]
MEND = "export the patch again: python -m reproducers.series"


def _status(pack: Pack) -> Status:
    state, filing = pack.upstream_state, pack.filing
    reason = " ".join(filing.reason.split())
    if state.filed_url:
        return Status(word="Submitted", url=state.filed_url, on=state.filed_on)
    if merged := fixing(pack):
        # Backport would say that the patch is upstream's own change; a pack's patch is written for it
        return Status(word="Inappropriate", why=f"fixed upstream by another change: {', '.join(merged)}")
    if filing.decision in ("hold", "none"):
        return Status(word="Inappropriate", why=f"{'held' if filing.decision == 'hold' else 'not filed'}: {reason}")
    if filing.decision == "comment":
        return Status(word="Pending", why=f"offered on {filing.thread}" if filing.thread else f"a comment: {reason}")
    return Status(word="Pending", why=f"to be filed as {filing.decision}: {reason}")


def bug(pack: Pack) -> str:
    """The upstream's own thread that reports the bug, else where the pack comments."""
    reports = [thread.url for thread in pack.upstream_state.threads if thread.relation == "reports it"]
    return next((url for url in reports if pack.owns(url)), pack.filing.thread or "none known")


def _validated(pack: Pack, pin: str, entry: Entry, receipts: Path) -> list[dict[str, object]]:
    """One piece of evidence a lane; PatchlaneError where there is none, or it is not the manifest's.

    Beside the live pin a lane whose receipt is of an earlier reproducer is left out, as long as another is current.
    """
    lane = "" if "cpu" in pack.lanes else " --lane cuda"
    again = f"python -m reproducers.run {pack.id}{lane} --at {pin}, then python -m reproducers.manifest refresh"
    rows: list[dict[str, object]] = []
    for lane, path in newest_of(pack, receipts, pin).items():
        digest, files = file_sha256(path), digests(path)
        if pin == "live" and getattr(entry.lanes.get(lane), "receipt_sha256", None) != digest:
            raise PatchlaneError(
                f"{pack.id}: the manifest lacks the newest {lane} receipt", again.partition("then ")[2]
            )
        if files["reproducer.py"] == file_sha256(pack.reproducer):
            seen, patch = read(path), files.get(getattr(pack.patch_at(pin), "name", ""))
            row: dict[str, object] = {"lane": lane, "verdict": seen.verdict.value, "taken": seen.day}
            rows.append({**row, "receipt": digest, "patch": patch})
        elif pin == "live":
            raise PatchlaneError(f"{pack.id}: reproducer.py changed since the {lane} receipt", again)
    if not rows:
        raise PatchlaneError(f"{pack.id} has no receipt of its reproducer at pin {pin}", again)
    return rows


def header(pack: Pack, pin: str, entry: Entry, receipts: Path) -> Header:
    """The header of the pack's patch at ``pin``; ``entry`` is the manifest's, ``receipts`` the folder of all receipts.

    PatchlaneError where there is no patch or receipt at that pin, or a field contradicts another.
    """
    restated = due(pack, pin)
    short = short_header.read(pack.patch_at(pin) or pack.patch)
    values = restated | {
        "subject": short.field("Subject"),
        "upstream_status": _status(pack),
        "origin": short.field("Origin"),
        "bug": bug(pack),
        "remove_when": " ".join(pack.remove_when.split()),
        "validated": _validated(pack, pin, entry, receipts),
        "review_by": pack.review_by,
    }
    try:
        return Header.model_validate(values, context={"pack": pack, "pin": pin})
    except ValidationError as error:
        rows = [f"{pack.id} at pin {pin}: {_said(fault)}" for fault in error.errors()]
        raise PatchlaneError("\n".join(rows), f"fix packs/{pack.folder.name}, or take a new receipt") from error


def _said(fault: Any) -> str:
    """One fault of a record by the field's written name."""
    written = {field: name for name, field in patch_mail.FIELDS.items()} | {"subject": "Subject"}
    field = str(fault["loc"][0]) if fault["loc"] else ""
    return f"{written.get(field, field)}: {fault['msg'].removeprefix('Value error, ')}"


def parse(text: str, pack: Pack | None = None, pin: str = "live") -> Header:
    """The header of an exported patch, checked in itself and, where ``pack`` is given, against its record.

    PatchlaneError with the line of each fault.
    """
    values, lines = patch_mail.fields_of(text)
    try:
        return Header.model_validate(values, context={"pack": pack, "pin": pin} if pack else None)
    except ValidationError as error:
        rows = [f"line {lines.get(str(f['loc'][0]), 1)}: {_said(f)}" for f in error.errors()]
        raise PatchlaneError("\n".join(rows), MEND) from error


def mail(pack: Pack, pin: str, entry: Entry, receipts: Path, number: int = 1, total: int = 1) -> tuple[str, bytes]:
    """(file name, mail) of the pack's patch at ``pin`` as ``git am`` takes it, ``number`` of a series of ``total``.

    The same pack and receipts give the same bytes. PatchlaneError as ``header``'s.
    """
    made = header(pack, pin, entry, receipts)
    short = short_header.read(pack.patch_at(pin) or pack.patch)
    lanes = [found.lane for found in made.validated]
    started = max(read(path).started for lane, path in newest_of(pack, receipts, pin).items() if lane in lanes)
    message = patch_mail.message([pack.claim, *short.description], made.trailers())
    name = f"{number:04d}-{patch_mail.slug(made.subject)}.patch"
    tag = "PATCH" if total == 1 else f"PATCH {number}/{total}"
    when = datetime.datetime.fromisoformat(started)
    return name, patch_mail.compose(f"[{tag}] {made.subject}", when, message, short.diff)
