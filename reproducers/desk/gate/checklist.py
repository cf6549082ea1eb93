"""The seven points between a pack and its filing, each with its result and the command that mends it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reproducers.base.errors import PatchlaneError
from reproducers.desk.attachment import export
from reproducers.desk.blockers import REFRESH, blockers
from reproducers.desk.gate import approval, passing
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

ATTACHMENT = 25_000_000  # bytes that GitHub takes as one attached file
SHOWN = 8  # characters of a digest that a person compares


@dataclass(frozen=True)
class Point:
    """One check: "pass", "fail", or "person" where only a person can go on; ``mend`` is what ends it."""

    name: str
    result: Literal["pass", "fail", "person"]
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Checklist:
    """What stands between a pack and its filing on a day; ``files`` is empty where the text does not render."""

    pack: Pack
    form: str
    day: datetime.date
    files: dict[str, bytes] = field(repr=False)
    blockers: list[Point]
    points: list[Point]

    @property
    def open(self) -> list[Point]:
        """All that has not passed, what a person does last."""
        rest = [point for point in (*self.blockers, *self.points) if point.result != "pass"]
        return sorted(rest, key=lambda point: point.result == "person")


def judge(name: str, form: str | None, day: datetime.date, clone: Path | None = None) -> Checklist:
    """The checklist of the project's pack of that name; PatchlaneError for an unknown pack or form."""
    (pack,) = load_named([name])
    return examine(pack, schema.ROOT / "receipts", Store(offline=True).root, form_of(pack, form), day, clone)


def next_step(found: Checklist) -> str:
    """The one thing to do next."""
    if found.open:
        return found.open[0].remedy
    files = f"python -m reproducers.render {found.pack.id} --as {found.form} --out DIR"
    return f"{files}; post these files by hand (docs/filing.md), then record it in pack.yaml"


def form_of(pack: Pack, asked: str | None) -> str:
    """The form asked for, by default the decided one; PatchlaneError for one that the pack cannot take."""
    known = dossier.forms(pack)
    form = asked or (pack.filing.decision if pack.filing.decision in known else known[0])
    if form not in known:
        raise PatchlaneError(f"{pack.id} cannot be filed as {form!r}", f"--as {' or '.join(known)}")
    return form


def examine(
    pack: Pack, receipts: Path, store: Path, form: str, day: datetime.date, clone: Path | None = None
) -> Checklist:
    """Every point; ``clone`` is one of the upstream, to try the patch on its main branch.

    PatchlaneError when the pack's receipts do not verify.
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
        approved(pack, form, files or unmade, day),
    ]
    return Checklist(pack, form, day, files, list(barred(pack, receipts, form, day)), points)


def barred(pack: Pack, receipts: Path, form: str, day: datetime.date) -> Iterator[Point]:
    """What keeps the pack from being filed in that form at all, whether or not ``filing`` decides for it."""
    decided, entry = pack.filing.decision, manifest.entry_of(pack, receipts)
    if decided not in ("hold", "none", form):
        edit = f"--as {decided}, or packs/{pack.folder.name}/pack.yaml, filing.decision: {form}"
        yield Point("decision", "fail", f"pack.yaml decides for {decided}, not {form}", edit)
        filing = pack.filing.model_copy(update={"decision": form})
        pack = pack.model_copy(update={"filing": filing})
    for found in blockers(pack, entry, day):
        yield Point(found.rule, "fail", found.what, found.remedy)


def passed_today(pack: Pack, receipts: Path, day: datetime.date) -> Point:
    """Point 1: a receipt of that day at the filed pin, of the pack as it is, with its verdict, from a named host."""
    name, lane = "reproduced today", sorted(pack.lanes)[0]
    command = again(pack, lane, pack.filing_pin).partition(",")[0]
    remedy = f"{command} --host NAME, {REFRESH}"
    found = passing.on(pack, receipts, day)
    said = []
    for path in found:
        seen, why = read(path), passing.refusal(pack, path)
        where = f"{seen.verdict} on {seen.host.alias} ({seen.lane}), {path.parent.name}/{path.name}"
        if not why:
            return Point(name, "pass", where)
        said.append(f"{where}: {why}")
    pin = pack.filing_pin
    return Point(name, "fail", "; ".join(said) or f"no receipt of both arms at pin {pin} from {day}", remedy)


def text(form: str, report: Report, unmade: PatchlaneError | None) -> Point:
    """Point 2: the text renders to the form and lint finds nothing; what lint could not look at has not passed."""
    name, command = "text", f"python -m reproducers.lint {' '.join(report.packs)}"
    if unmade:
        return Point(name, "fail", unmade.what, unmade.remedy)
    faults = [str(fault) for fault in report.faults if not fault.rule.startswith(("private-", "format-"))]
    skipped = [f"{s.rule} could not look: {s.why}" for s in report.skipped if not s.rule.startswith("format-")]
    if said := [*faults, *skipped]:
        return Point(name, "fail", "\n".join(said), command)
    return Point(name, "pass", f"renders as {form}; lint finds nothing")


def attached(pack: Pack, form: str, files: dict[str, bytes]) -> Point:
    """Point 3: the reproducer is there as one file, is the export of what is there now, and GitHub takes all files."""
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
    """Point 4: no private word in any file that leaves, nor in what lint reads beside them."""
    from reproducers.desk.rules import exemptions
    from reproducers.desk.rules.prose.private import over

    kept = [e for e in exemptions.read(case.pack.folder.parent) if e.pack == case.pack.id]
    said = [str(fault) for fault in report.faults if fault.rule.startswith("private-")]
    texts = [(Path(name), data.decode("utf-8", "replace")) for name, data in sorted(files.items())]
    for rule, found in over(case, texts):
        if not any(e.rule == rule and e.match in found.what for e in kept):
            said.append(f"{found.file}:{found.line}: {rule}: {found.what}; fix: {found.remedy}")
    if said or not files:
        what = "\n".join(dict.fromkeys(said)) or "there is no text to search"
        return Point("no private words", "fail", what, f"python -m reproducers.lint {case.pack.id}")
    return Point("no private words", "pass", f"{len(files)} files searched")


def formatted(pack: Pack, form: str, report: Report) -> Point:
    """Point 5: what the patch adds is as the upstream's formatter leaves it; no exemption serves a pull request."""
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
    """Point 6: git takes the attached patch, without fuzz, on the tree that it is for; a pull request's on main."""
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
    if said := branch.on_tree(pack, tree, mail):
        return Point(name, "fail", f"not on {pin.origin}: {said}", rebase)
    if clone is not None and (form == "pr" or not pin.release):
        where.append(f"main at {(commit := branch.head(clone))}")
        if said := branch.on_commit(clone, commit, mail):
            return Point(name, "fail", f"not on {where[-1]}: {said}", rebase)
    elif form == "pr" and pin.release:
        remedy = f"git clone https://github.com/{pack.upstream.repo} DIR, then the same command with --clone DIR"
        return Point(name, "fail", f"it is of {pin.origin}, and a pull request is for main", remedy)
    return Point(name, "pass", f"on {' and '.join(where)}")


def approved(pack: Pack, form: str, files: dict[str, bytes] | PatchlaneError | None, day: datetime.date) -> Point:
    """Point 7: a person has read these very files, or why there are none."""
    name, remedy = "approval", f"python -m reproducers.approve {pack.id} --as {form}"
    try:
        found = approval.read(pack)
    except PatchlaneError as error:
        return Point(name, "fail", error.what, error.remedy)
    if found is None:
        return Point(name, "person", "nobody has approved it yet", remedy)
    if not isinstance(files, dict):
        why = files.what if files else "there is no text"
        return Point(name, "fail", f"{found.name}'s approval of {found.date} is void: {why}", remedy)
    if voided := approval.changes(found, form, files, dossier.digest(files), day):
        return Point(name, "fail", f"{found.name}'s approval of {found.date} is void: {'; '.join(voided)}", remedy)
    return Point(name, "pass", f"{found.name} on {found.date}, digest {found.digest[:SHOWN]}")
