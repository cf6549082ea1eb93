"""Rules on a patch's headers: the short one that is committed, and the full one that is generated for its reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.base.verdicts import Verdict
from reproducers.desk.patches import header, short_header
from reproducers.desk.patches.fields import ORIGINS, origin_fault, upstream_commit
from reproducers.desk.patches.short_header import ShortHeader
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.evidence.receipts import digests, newest_of, read
from reproducers.record.schema import Pin
from reproducers.upstream import patching

REQUIRED = ("Subject", "Pack", "Origin", "Upstream-Status", "Licence")
YOCTO = ("Pending", "Submitted", "Backport", "Denied", "Inappropriate", "Inactive-Upstream")


@rule("header-grammar", "a patch's short header has every field, and all that it has agree with pack.yaml and the pins")
def grammar(case: Case) -> Iterator[Breach | Skip]:
    for path in dict.fromkeys(case.patches.values()):
        try:
            short, faults = short_header.scan(path)
        except PatchlaneError:
            continue  # patch-clean says so
        yield from (Breach(path, fault.line, fault.what, fault.remedy) for fault in faults)
        for name in REQUIRED:
            if name not in short.fields:
                yield Breach(path, 1, f"the header has no {name}", f'write "{name}: ..." above the diff')
        pins = [case.pack.pins[pin] for pin, patch in case.patches.items() if patch == path]
        for name, what, remedy in _disagreements(case, short, pins):
            yield Breach(path, short.lines[name], what, remedy)


def _disagreements(case: Case, short: ShortHeader, pins: list[Pin]) -> Iterator[tuple[str, str, str]]:
    """(field, what is wrong, what ends it) of each field that contradicts the pack."""
    pack, fields = case.pack, short.fields
    for name, due in (("Pack", f"{pack.number:02d}"), ("Licence", pack.upstream.licence)):
        if fields.get(name, due) != due:
            yield name, f"{name} is {fields[name]}, pack.yaml has {due}", f'write "{name}: {due}"'
    words = set(re.findall(r"[\w.+!-]+", fields.get("Applies-To", "")))
    for due in dict.fromkeys(known for pin in pins for known in (pin.release, pin.sha) if known):
        if "Applies-To" in fields and due not in words:
            yield "Applies-To", f"Applies-To lacks the pin's {due}", "name the release and the full SHA of each pin"
    status = fields.get("Upstream-Status")
    if status is not None and not re.match(rf"(?:{'|'.join(YOCTO)})(?![\w-])", status):
        yield "Upstream-Status", f"Upstream-Status starts with none of Yocto's words: {status}", ", ".join(YOCTO)
    if fault := origin_fault(fields.get("Origin", "patchlane")):
        yield "Origin", fault, ORIGINS
    yield from _contradictions(case, fields.get("Origin", ""), status or "")


def _contradictions(case: Case, origin: str, status: str) -> Iterator[tuple[str, str, str]]:
    """As ``_disagreements``: where the state that the patch claims is not that of its origin or of pack.yaml."""
    state, decision = case.pack.upstream_state, case.pack.filing.decision
    word = status.partition(" ")[0].rstrip(":,")
    if upstream_commit(origin) and word != "Backport":
        yield (
            "Upstream-Status",
            f"Origin says that the change is upstream's own, {word or 'nothing'} is said",
            "Backport",
        )
    if word in ("Backport", "Inappropriate", "Denied") and decision in ("issue", "pr"):
        what = f"{word} says that upstream has no use for the patch, filing.decision is {decision}"
        yield "Upstream-Status", what, "decide for comment, hold or none, or write Pending"
    if word == "Backport" and not any(thread.relation == "fixes it" for thread in state.threads):
        what = "Backport says that upstream has the change, and no thread of upstream_state fixes the bug"
        yield "Upstream-Status", what, "list the commit or its pull request under upstream_state.threads"
    if word == "Submitted" and state.filed_url is None:
        yield "Upstream-Status", "Submitted, and upstream_state has no filed_url", "write Pending, or what was filed"


@rule("header-export", "the mail that git am takes can be made of the patch, its record and its receipts")
def export(case: Case) -> Iterator[Breach | Skip]:
    for pin, path in case.patches.items():
        why = _unread(path) or _unproved(case, pin, path)
        if why:
            yield Skip(why)
            continue
        try:
            header.mail(case.pack, pin, case.entry, case.receipts)
        except PatchlaneError as error:
            yield Breach(*_place(case, path, error.what), error.what, error.remedy)


def _unread(path: Path) -> str:
    """Why the patch cannot be carried; other rules report the fault."""
    try:
        short = short_header.read(path)
        carried = bool(short.field("Subject")) and not origin_fault(short.field("Origin"))
        patching.files(path)
    except PatchlaneError:
        carried = False
    return "" if carried else "the patch or its short header is at fault, see patch-clean and header-grammar"


def _unproved(case: Case, pin: str, path: Path) -> str:
    """Why no receipt proves this patch at this pin; receipt-stale reports stale receipts."""
    newest = newest_of(case.pack, case.receipts, pin)
    reproducer, patch = file_sha256(case.pack.reproducer), file_sha256(path)
    current = {lane: receipt for lane, receipt in newest.items() if _ran(receipt, "reproducer.py") == reproducer}
    if not current or (pin == "live" and current != newest):
        return f"no receipt of this reproducer at pin {pin}"
    if any(_ran(receipt, path.name) != patch for receipt in current.values()):
        return f"no receipt of this patch at pin {pin}"
    fixed = all(read(receipt).verdict is Verdict.REPRODUCED_AND_FIXED for receipt in current.values())
    return "" if fixed else f"the patch is not proved at pin {pin}"


def _ran(receipt: Path, name: str) -> str | None:
    return digests(receipt).get(name)


def _place(case: Case, path: Path, what: str) -> tuple[Path, int]:
    """The line of the patch for a field that is written there, else the record."""
    for word in ("Subject", "Origin"):
        if f": {word}: " in what:
            return path, short_header.read(path).lines[word]
    return case.record, 1
