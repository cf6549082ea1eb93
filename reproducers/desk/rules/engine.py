"""Run all rules over packs and report faults, exempted faults and skipped rules."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.exemptions import NAME, Exemption, read
from reproducers.desk.rules.registry import Skip, all_rules
from reproducers.record.schema import ROOT, Pack, line_of, read_yaml

EXEMPTION = "exemption"
MEANING = "every exemption names a rule and a pack that exist, keeps a fault from being reported, and has not ended"


@dataclass(frozen=True)
class Fault:
    """A pack's breach of a rule and what ends it. ``file`` is relative to the project's folder."""

    rule: str
    pack: str
    file: str
    line: int
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.what}; fix: {self.remedy}"


@dataclass(frozen=True)
class Skipped:
    """A rule that could not look at a pack, and why."""

    rule: str
    pack: str
    why: str


@dataclass
class Report:
    """The result of a lint; it is clean without faults."""

    packs: list[str]
    faults: list[Fault] = field(default_factory=list)
    exempted: list[Fault] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def meanings() -> dict[str, str]:
    """{rule: its meaning in one line}."""
    return {name: rule.meaning for name, rule in all_rules().items()} | {EXEMPTION: MEANING}


def examine(packs: list[Pack], receipts: Path, store: Path, today: datetime.date) -> Report:
    """Run every rule over every pack. Exemptions are read beside the packs."""
    report = Report([pack.id for pack in packs])
    for pack in packs:
        _examine(pack, Case(pack, receipts, store, today), report)
    if packs:
        _exempt(report, packs[0].folder.parent, today)
    return report


def _examine(pack: Pack, case: Case, report: Report) -> None:
    for name, rule in all_rules().items():
        for result in dict.fromkeys(rule.check(case)):
            if isinstance(result, Skip):
                report.skipped.append(Skipped(name, pack.id, result.why))
            else:
                file = _relative(result.file, pack.folder.parent.parent)
                report.faults.append(Fault(name, pack.id, file, result.line, result.what, result.remedy))


def _relative(path: Path, root: Path) -> str:
    for base in (root, ROOT):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.name


def _exempt(report: Report, folder: Path, today: datetime.date) -> None:
    """Take the exempted faults out of the report, and add a fault for each wrong, idle or ended exemption."""
    known = {f"pack{path.parent.name[:2]}" for path in folder.glob("*/pack.yaml")}
    listed = read(folder)
    text = read_yaml(folder / NAME)[0] if listed else ""
    for index, exemption in enumerate(listed):
        hit = [fault for fault in report.faults if _covers(exemption, fault)]
        report.faults = [fault for fault in report.faults if fault not in hit]
        report.exempted += hit
        for what in _wrong(exemption, known, bool(hit), report, today):
            line = line_of(text, (index,))
            place = _relative(folder / NAME, folder.parent)
            report.faults.append(Fault(EXEMPTION, exemption.pack, place, line, what, "correct it or take it out"))


def _covers(exemption: Exemption, fault: Fault) -> bool:
    return (exemption.rule, exemption.pack) == (fault.rule, fault.pack) and exemption.match in fault.what


def _wrong(exemption: Exemption, known: set[str], hit: bool, report: Report, today: datetime.date) -> Iterator[str]:
    skipped = any((s.rule, s.pack) == (exemption.rule, exemption.pack) for s in report.skipped)
    if exemption.rule not in all_rules():
        yield f"no rule {exemption.rule!r}"
    elif exemption.pack not in known:
        yield f"no pack {exemption.pack!r}"
    elif not hit and not skipped and exemption.pack in report.packs:
        yield f"exemption not needed: {exemption.rule} finds nothing with {exemption.match!r}"
    elif today > exemption.until and exemption.pack in report.packs:
        yield f"exemption ended on {exemption.until}: mend what {exemption.rule} finds"
