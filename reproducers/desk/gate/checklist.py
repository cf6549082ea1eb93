"""The eight points that a pack must pass before it is filed, each with its result and its remedy."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import BROKEN, HEALTHY
from reproducers.desk.attachment import export
from reproducers.desk.blockers import REFRESH, blockers, releases_tried
from reproducers.desk.gate import approval, passing, releases
from reproducers.desk.patches import branch
from reproducers.desk.text import dossier
from reproducers.desk.text.lookups import again
from reproducers.evidence import manifest
from reproducers.evidence.receipts import read
from reproducers.evidence.verification import refuse, verify_all
from reproducers.record import schema
from reproducers.record.schema import Pack, load_named
from reproducers.upstream.store import Store

if TYPE_CHECKING:
    from reproducers.desk.rules.case import Case
    from reproducers.desk.rules.engine import Report

FOR_NEWEST = ("issue", "pr")
ATTACHMENT = 25_000_000  # bytes that GitHub takes as one attached file
SHOWN = 8  # characters of a digest that a person compares


@dataclass(frozen=True)
class Point:
    """The result of one check, "person" where only a person can go on, with the fact and what to do about it."""

    name: str
    result: Literal["pass", "fail", "person"]
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Checklist:
    """All that stands between a pack and its filing on ``day``; ``files`` is empty if the text does not render."""

    pack: Pack
    form: str
    day: datetime.date
    files: dict[str, bytes] = field(repr=False)
    blockers: list[Point]
    points: list[Point]

    @property
    def open(self) -> list[Point]:
        """All points that have not passed, a person's last."""
        failing = [point for point in (*self.blockers, *self.points) if point.result != "pass"]
        return sorted(failing, key=lambda point: point.result == "person")


def judge(
    name: str, form: str | None, day: datetime.date, clone: Path | None = None, newest: str | None = None
) -> Checklist:
    """The checklist of this project's pack ``name``; the decided form if ``form`` is None.

    ``newest``: upstream's newest release on the index, where somebody looked.

    Raises PatchlaneError if there is no such pack, it cannot take the form, or its receipts do not verify.
    """
    (pack,) = load_named([name])
    receipts, store = schema.ROOT / "receipts", Store(offline=True).root
    return examine(pack, receipts, store, form_of(pack, form), day, clone, newest)


def next_step(checklist: Checklist) -> str:
    """The remedy of the first open point, or how to post the files if none is open."""
    if checklist.open:
        return checklist.open[0].remedy
    files = f"python -m reproducers.render {checklist.pack.id} --as {checklist.form} --out DIR"
    return f"{files}; post these files by hand (docs/filing.md), then record it in pack.yaml"


def form_of(pack: Pack, asked: str | None) -> str:
    """The form asked for, by default the decided one. Raises PatchlaneError if the pack cannot take it."""
    known = dossier.forms(pack)
    form = asked or (pack.filing.decision if pack.filing.decision in known else known[0])
    if form not in known:
        raise PatchlaneError(f"{pack.id} cannot be filed as {form!r}", f"--as {' or '.join(known)}")
    return form


def examine(
    pack: Pack,
    receipts: Path,
    store: Path,
    form: str,
    day: datetime.date,
    clone: Path | None = None,
    newest: str | None = None,
) -> Checklist:
    """The pack's checklist. ``clone`` is a clone of the upstream, to try the patch on its main branch; ``newest``:
    upstream's newest release on the index, where somebody looked.

    Raises PatchlaneError if the pack's receipts do not verify.
    """
    from reproducers.desk.rules.case import Case
    from reproducers.desk.rules.engine import examine as lint

    refuse(verify_all(receipts, f"{pack.number:02d}"))
    report = lint([pack], receipts, store, day)
    try:
        files, unmade = dossier.files(pack, receipts, form), None
    except PatchlaneError as error:
        files, unmade = {}, error
    points = [
        passed_today(pack, receipts, day),
        text(form, report, unmade),
        attached(pack, form, files),
        private(Case(pack, receipts, store, day), files, report),
        formatted(pack, form, report),
        applies(pack, form, files, store, clone),
        newest_release(pack, form, receipts, newest),
        approved(pack, form, unmade or files, day),
    ]
    return Checklist(pack, form, day, files, list(barred(pack, receipts, form, day)), points)


def barred(pack: Pack, receipts: Path, form: str, day: datetime.date) -> Iterator[Point]:
    """A failed point for each reason why the pack may not be filed in that form, the decision for another one first."""
    decided, entry = pack.filing.decision, manifest.derived(pack, receipts)
    if decided not in ("hold", "none", form):
        edit = f"--as {decided}, or packs/{pack.folder.name}/pack.yaml, filing.decision: {form}"
        yield Point("decision", "fail", f"pack.yaml decides for {decided}, not {form}", edit)
        filing = pack.filing.model_copy(update={"decision": form})
        pack = pack.model_copy(update={"filing": filing})
    for blocker in blockers(pack, entry, day):
        yield Point(blocker.rule, "fail", blocker.what, blocker.remedy)


def passed_today(pack: Pack, receipts: Path, day: datetime.date) -> Point:
    """Point 1: a receipt of that day at the filed pin, of the pack as it is, has the owed verdict and a host alias."""
    name, lane = "reproduced today", sorted(pack.lanes)[0]
    command = again(pack, lane, pack.filing_pin).partition(",")[0]
    remedy = f"{command} --host NAME, {REFRESH}"
    refused = []
    for path in passing.on(pack, receipts, day):
        receipt, why = read(path), passing.refusal(pack, path)
        what = f"{receipt.verdict} on {receipt.host.alias} ({receipt.lane}), {path.parent.name}/{path.name}"
        if not why:
            return Point(name, "pass", what)
        refused.append(f"{what}: {why}")
    none = f"no receipt of both arms at pin {pack.filing_pin} from {day}"
    return Point(name, "fail", "; ".join(refused) or none, remedy)


def text(form: str, report: Report, unmade: PatchlaneError | None) -> Point:
    """Point 2: the text renders to the form, lint finds no fault in it, and no rule of lint was skipped."""
    name, command = "text", f"python -m reproducers.lint {' '.join(report.packs)}"
    if unmade:
        return Point(name, "fail", unmade.what, unmade.remedy)
    faults = [str(fault) for fault in report.faults if not fault.rule.startswith(("private-", "format-"))]
    skipped = [f"{s.rule} could not look: {s.why}" for s in report.skipped if not s.rule.startswith("format-")]
    if faults or skipped:
        return Point(name, "fail", "\n".join([*faults, *skipped]), command)
    return Point(name, "pass", f"renders as {form}; lint finds nothing")


def attached(pack: Pack, form: str, files: dict[str, bytes]) -> Point:
    """Point 3: the single file is the export of the reproducer as it is now, and GitHub takes all files."""
    name, own = "reproducer attached", f"{pack.id}.py"
    if own not in files:
        return Point(name, "fail", f"there is no {own}", "fix the text first" if not files else "git status")
    if files[own] != export.render(pack).encode():
        return Point(name, "fail", f"{own} is not the export of reproducer.py as it is", "git status")
    long = len(files[f"{form}.md"].decode())
    if long > export.ISSUE_LIMIT:
        what = f"{form}.md has {long:,} characters, GitHub takes {export.ISSUE_LIMIT:,}"
        return Point(name, "fail", what, f"shorten packs/{pack.folder.name}/body.md.j2")
    for file, data in sorted(files.items()):
        if len(data) > ATTACHMENT:
            what = f"{file} has {len(data):,} bytes, GitHub takes {ATTACHMENT:,} as one attachment"
            return Point(name, "fail", what, "print less in the reproducer, then run it again")
    return Point(name, "pass", f"{own}, {len(files[own]):,} bytes; the text has {long:,} characters")


def private(case: Case, files: dict[str, bytes], report: Report) -> Point:
    """Point 4: no private word is in any file to be posted, nor in any other file of the pack that lint reads."""
    from reproducers.desk.rules import exemptions
    from reproducers.desk.rules.prose.private import over

    kept = [e for e in exemptions.read(case.pack.folder.parent) if e.pack == case.pack.id]
    faults = [str(fault) for fault in report.faults if fault.rule.startswith("private-")]
    texts = [(Path(name), data.decode("utf-8", "replace")) for name, data in sorted(files.items())]
    for rule, match in over(case, texts):
        if not any(e.rule == rule and e.match in match.what for e in kept):
            faults.append(f"{match.file}:{match.line}: {rule}: {match.what}; fix: {match.remedy}")
    if faults or not files:
        what = "\n".join(dict.fromkeys(faults)) or "there is no text to search"
        return Point("no private words", "fail", what, f"python -m reproducers.lint {case.pack.id}")
    return Point("no private words", "pass", f"{len(files)} files searched")


def formatted(pack: Pack, form: str, report: Report) -> Point:
    """Point 5: the upstream's formatter leaves the patch's lines as they are; a pull request may have no exemption."""
    from reproducers.desk.rules.patch.formatters import FORMATTERS

    exempted = [f for f in report.exempted if f.rule.startswith("format-")]
    name, faults = "upstream's formatter", [str(f) for f in report.faults if f.rule.startswith("format-")]
    faults += [str(fault) for fault in exempted if form == "pr"]
    skipped = list(dict.fromkeys(skip.why for skip in report.skipped if skip.rule.startswith("format-")))
    if skipped or faults:
        remedy = skipped[0].split(": ", 1)[-1] if skipped else f"python -m reproducers.lint {pack.id}"
        return Point(name, "fail", "\n".join([*faults, *skipped]), remedy)
    if not pack.patch.is_file():
        return Point(name, "pass", "the pack has no patch")
    if pack.upstream.repo not in FORMATTERS:
        return Point(name, "pass", f"no formatter of {pack.upstream.repo} is known")
    kept = f", {len(exempted)} lines exempted in lint-exemptions.yaml" if exempted else ""
    return Point(name, "pass", f"the patch is as {pack.upstream.repo} formats{kept}")


def applies(pack: Pack, form: str, files: dict[str, bytes], store: Path, clone: Path | None) -> Point:
    """Point 6: git applies the attached patch, without fuzz, to the filed pin's tree; a pull request's to main too."""
    from reproducers.desk.patches.trees import tree_of

    name, pin = "applies to its branch", pack.pins[pack.filing_pin]
    if not pack.patch.is_file():
        return Point(name, "pass", "the pack has no patch")
    mail = files.get(f"{pack.id}.patch")
    if mail is None:
        return Point(name, "fail", "there is no patch to try", "fix the text first")
    rebase = "rebase it: git apply --3way in a checkout of that tree, then git diff"
    where = [str(pin.origin)]
    if (tree := tree_of(pack, pin, store)) is None:
        remedy = again(pack, sorted(pack.lanes)[0], pack.filing_pin).partition(",")[0]
        return Point(name, "fail", f"{pin.origin} is not in the store", remedy)
    mails = [mail, *(data for file, data in files.items() if file == f"{pack.id}-tests.patch")]
    if refusal := next(filter(None, (branch.on_tree(pack, tree, each) for each in mails)), ""):
        return Point(name, "fail", f"not on {pin.origin}: {refusal}", rebase)
    if clone is not None and (form == "pr" or not pin.release):
        where.append(f"main at {(commit := branch.head(clone))}")
        if refusal := next(filter(None, (branch.on_commit(clone, commit, each) for each in mails)), ""):
            return Point(name, "fail", f"not on {where[-1]}: {refusal}", rebase)
    elif form == "pr" and pin.release:
        remedy = f"git clone https://github.com/{pack.upstream.repo} DIR, then the same command with --clone DIR"
        return Point(name, "fail", f"it is for {pin.origin}, a pull request must be for main", remedy)
    return Point(name, "pass", f"on {' and '.join(where)}")


def newest_release(pack: Pack, form: str, receipts: Path, newest: str | None) -> Point:
    """Point 7: a receipt says that upstream's newest release still has the bug; a comment or a commit needs none."""
    name, pin = "newest release", pack.pins[pack.filing_pin]
    if form not in FOR_NEWEST or pin.release is None:
        return Point(name, "pass", "not asked of a comment" if form not in FOR_NEWEST else f"filed of {pin.origin}")
    tried = releases_tried(manifest.derived(pack, receipts))
    asked = "" if newest else ", the newest that packs and receipts name; the index was not asked"
    newest = newest or releases.known(pack, tried)
    lane = "" if "cpu" in pack.lanes else " --lane cuda"
    again = f"python -m reproducers.sweep {pack.id} --newest 1{lane} --host NAME, {REFRESH}"
    if newest not in tried:
        return Point(name, "fail", f"no receipt says whether the bug is in {newest}{asked}", again)
    if tried[newest] in BROKEN:
        return Point(name, "pass", f"{tried[newest]} in {newest}{asked}")
    healthy = f"packs/{pack.folder.name}/pack.yaml: pins.fixed, and filing.decision: comment or none"
    return Point(name, "fail", f"{tried[newest]} in {newest}{asked}", healthy if tried[newest] in HEALTHY else again)


def approved(pack: Pack, form: str, files: dict[str, bytes] | PatchlaneError, day: datetime.date) -> Point:
    """Point 8: a person has read exactly these ``files``; an error instead of them says why there are none."""
    name, remedy = "approval", f"python -m reproducers.approve {pack.id} --as {form}"
    try:
        given = approval.read(pack)
    except PatchlaneError as error:
        return Point(name, "fail", error.what, error.remedy)
    if given is None:
        return Point(name, "person", "nobody has approved it yet", remedy)
    if isinstance(files, PatchlaneError):
        reasons = [files.what]
    else:
        reasons = approval.changes(given, form, files, dossier.digest(files), day)
    if reasons:
        return Point(name, "fail", f"{given.name}'s approval of {given.date} is void: {'; '.join(reasons)}", remedy)
    return Point(name, "pass", f"{given.name} on {given.date}, digest {given.digest[:SHOWN]}")
