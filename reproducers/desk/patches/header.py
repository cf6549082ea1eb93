"""The DEP-3 header of an exported patch, made from pack.yaml and receipts, and the mail that ``git am`` takes.

Committed patches keep their short header, because receipts hold their digests.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.base.verdicts import Verdict
from reproducers.desk import unwritten
from reproducers.desk.patches import fields, short_header
from reproducers.desk.patches import mail as patch_mail
from reproducers.desk.patches.short_header import ShortHeader
from reproducers.evidence.receipts import digests, newest_of, read
from reproducers.record.entry import Entry
from reproducers.record.receipt import Details
from reproducers.record.schema import Pack


@dataclass(frozen=True)
class Evidence:
    """The newest receipt of one lane, its digest, and the digest of the patch that it ran, None if it ran none."""

    lane: str
    details: Details
    receipt: str
    patch: str | None

    def __str__(self) -> str:
        ruled = f"{self.lane} {self.details.verdict.value} on {self.details.day}"
        return f"{ruled}, receipt sha256:{self.receipt}, patch sha256:{self.patch}"


@dataclass(frozen=True)
class Header:
    """A patch with its short header as committed, and the (name, value) pairs written beneath its message."""

    short: ShortHeader
    trailers: list[tuple[str, str]]
    validated: list[Evidence]


def _validated(pack: Pack, pin: str, patch: Path, entry: Entry, receipts: Path) -> list[Evidence]:
    """Evidence of each lane; PatchlaneError if there is none, or the manifest names another receipt.

    At the live pin every lane's receipt must be of this reproducer; elsewhere lanes with an earlier one are left out.
    """
    lane = "" if "cpu" in pack.lanes else " --lane cuda"
    refresh = "python -m reproducers.manifest refresh"
    again = f"python -m reproducers.run {pack.id}{lane} --at {pin}, then {refresh}"
    rows: list[Evidence] = []
    for lane, path in newest_of(pack, receipts, pin).items():
        digest, files = file_sha256(path), digests(path)
        if pin == "live" and getattr(entry.lanes.get(lane), "receipt_sha256", None) != digest:
            raise PatchlaneError(f"{pack.id}: the manifest lacks the newest {lane} receipt", refresh)
        if files["reproducer.py"] == file_sha256(pack.reproducer):
            rows.append(Evidence(lane, read(path), digest, files.get(patch.name)))
        elif pin == "live":
            raise PatchlaneError(f"{pack.id}: reproducer.py changed since the {lane} receipt", again)
    if not rows:
        raise PatchlaneError(f"{pack.id} has no receipt of its reproducer at pin {pin}", again)
    return rows


def _patch(pack: Pack, pin: str) -> Path:
    """The committed patch for ``pin``; PatchlaneError if it has none or the tree is healthy."""
    patch = None if pack.healthy_at(pin) or pin not in pack.pins else pack.patch_at(pin)
    if patch is None:
        having = [name for name in pack.pins if pack.patch_at(name) and not pack.healthy_at(name)]
        raise PatchlaneError(f"{pack.id} has no patch at pin {pin}", f"pins with one: {', '.join(having) or 'none'}")
    return patch


def header(pack: Pack, pin: str, entry: Entry, receipts: Path) -> Header:
    """The header of the pack's patch at ``pin``; ``entry`` is the manifest's, ``receipts`` the folder of all receipts.

    Raises PatchlaneError if there is no patch or receipt at that pin, or if a field is wrong or contradicts another.
    """
    patch = _patch(pack, pin)
    unwritten.refuse([pack], ["pack.yaml", "*.patch"])
    short = short_header.read(patch)
    subject, origin = short.field("Subject"), short.field("Origin")
    digest, validated = file_sha256(patch), _validated(pack, pin, patch, entry, receipts)
    trailers = [
        ("Pack", f"{pack.number:02d}"),
        ("Origin", origin),
        ("Bug", fields.bug(pack)),
        ("Upstream-Status", fields.status(pack, origin)),
        ("Applies-To", fields.target(pack, pack.pins[pin])),
        ("Remove-When", " ".join(pack.remove_when.split())),
        ("Review-By", str(pack.review_by)),
        ("Patch", f"sha256:{digest}"),
        ("Reproducer", f"sha256:{file_sha256(pack.reproducer)}"),
        *(("Validated", str(evidence)) for evidence in validated),
        ("Licence", pack.upstream.licence),
    ]
    faults = [("Subject", "begins with [, which git takes for a tag of its own")] if subject.startswith("[") else []
    faults += [*_unwritten(pack, origin, trailers), *_unproved(pack, digest, validated)]
    if faults:
        rows = [f"{pack.id} at pin {pin}: {name}: {what}" for name, what in faults]
        raise PatchlaneError("\n".join(rows), f"fix packs/{pack.folder.name}, or take a new receipt")
    return Header(short, trailers, validated)


def _unwritten(pack: Pack, origin: str, trailers: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(field, fault) of each value that a person has written wrong, or not at all."""
    filed = pack.upstream_state.filed_url
    if filed and not fields.URL.fullmatch(filed):
        yield "Upstream-Status", f"filed_url is not the URL of a thread: {filed}"
    if fault := fields.origin_fault(origin):
        yield "Origin", f"{fault}; write {fields.ORIGINS}"
    if fields.bug(pack) != "none known" and not fields.URL.fullmatch(fields.bug(pack)):
        yield "Bug", f"not the URL of a public thread: {fields.bug(pack)}"
    yield from ((name, "empty") for name, value in trailers if not value)


def _unproved(pack: Pack, patch: str, validated: list[Evidence]) -> Iterator[tuple[str, str]]:
    """(field, fault) of each receipt of another patch or verdict, and of a review that is due before the newest one."""
    for evidence in validated:
        if evidence.details.verdict is not Verdict.REPRODUCED_AND_FIXED:
            yield "Validated", f"the {evidence.lane} receipt says {evidence.details.verdict.value}"
        if evidence.patch != patch:
            yield "Validated", f"the {evidence.lane} receipt is of another patch: {evidence.patch}"
    newest = max(evidence.details.day for evidence in validated)
    if pack.review_by <= newest:
        yield "Review-By", f"{pack.review_by} is not after the newest receipt, of {newest}"


def mail(pack: Pack, pin: str, entry: Entry, receipts: Path, number: int = 1, total: int = 1) -> tuple[str, bytes]:
    """(file name, mail) of the pack's patch at ``pin`` as ``git am`` takes it, ``number`` of a series of ``total``.

    The same pack and receipts give the same bytes. Raises PatchlaneError as ``header`` does.
    """
    made = header(pack, pin, entry, receipts)
    subject = made.short.field("Subject")
    started = max(evidence.details.started for evidence in made.validated)
    message = patch_mail.message([pack.claim, *made.short.description], made.trailers)
    name = f"{number:04d}-{patch_mail.slug(subject)}.patch"
    tag = "PATCH" if total == 1 else f"PATCH {number}/{total}"
    when = datetime.datetime.fromisoformat(started)
    return name, patch_mail.compose(f"[{tag}] {subject}", when, message, made.short.diff)


def tests_mail(pack: Pack, number: int, total: int) -> tuple[str, bytes]:
    """(file name, mail) of the tests that the pack adds upstream; PatchlaneError for a malformed header."""
    short = short_header.read(pack.tests_patch)
    trailers = [("Pack", f"{pack.number:02d}"), ("Origin", short.field("Origin")), ("Licence", pack.upstream.licence)]
    subject = short.field("Subject")
    message = patch_mail.message(short.description, trailers)
    name = f"{number:04d}-{patch_mail.slug(subject)}.patch"
    return name, patch_mail.compose(f"[PATCH {number}/{total}] {subject}", None, message, short.diff)
