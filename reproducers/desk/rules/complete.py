"""A pack is complete: no mark of the skeleton is left, and a mutant shows that its checks catch a wrong fix."""

from __future__ import annotations

from collections.abc import Iterator

from patchlane.base.errors import PatchlaneError
from reproducers.desk import unwritten as unwritten_texts
from reproducers.desk.patches import short_header
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.registry import Breach, Skip, rule
from reproducers.desk.start import mutants, skeleton
from reproducers.evidence.receipts import read
from reproducers.record.mutation import equivalents
from reproducers.record.schema import line_of, text_of
from reproducers.trial import census
from reproducers.upstream import patching


@rule("pack-unwritten", "no file of the pack still has a mark where a person has to write")
def unwritten(case: Case) -> Iterator[Breach | Skip]:
    folder = case.pack.folder
    for path in sorted(path for path in [*folder.iterdir(), *mutants.paths(case.pack)] if path.is_file()):
        for line, what in unwritten_texts.marks(path.read_text(encoding="utf-8", errors="replace")):
            yield Breach(path, line, f"not written yet: {what}", f"write it in place of <write ...>: {skeleton.PAGE}")


@rule("pack-mutants", "a fix with a cpu lane has a mutant, and each mutant names a check of a lane that catches it")
def mutated(case: Case) -> Iterator[Breach | Skip]:
    paths = mutants.paths(case.pack)
    if mutants.owed(case.pack) and not paths:
        yield Breach(case.pack.patch, 1, "no mutant shows that a wrong fix is caught", mutants.PAGE)
    unseen = equivalents(case.pack, "cpu")
    for path in paths:
        try:
            mutant = mutants.read(path)
        except PatchlaneError as error:
            yield Breach(path, 1, error.what, error.remedy)
            continue
        lane = "cuda" if path.stem in unseen else "cpu"
        if mutant.caught_by.startswith(census.LINE):  # of facts a receipt has only those that differ
            continue
        if (names := list(_checks(case, lane))) and not mutant.catching(names):
            what = f"Caught-By: the newest {lane} receipt has no check {mutant.caught_by!r}"
            yield Breach(path, 1, what, "name a check as the receipt does, or take a new receipt")


@rule("pack-alternatives", "an alternative says why it is right, above a diff")
def alternatives(case: Case) -> Iterator[Breach | Skip]:
    for path in mutants.alternatives(case.pack):
        try:
            short_header.read(path).field("Why")
        except PatchlaneError as error:
            yield Breach(path, 1, error.what, error.remedy)


@rule("pack-unreached", "a line that a lane lists as unreached is one that a patch of the pack adds")
def unreached(case: Case) -> Iterator[Breach | Skip]:
    pack = case.pack
    listing = any(lane.unreached for lane in pack.lanes.values())
    added = {
        text.strip()
        for patch in (pack.folder.glob("*.patch") if listing else ())
        for lines in patching.added_lines(patch, 1).values()
        for text in lines.values()
    }
    for name, lane in pack.lanes.items():
        for place, entry in enumerate(lane.unreached):
            if entry.line not in added:
                path = pack.folder / "pack.yaml"
                line = line_of(text_of(path), ("lanes", name, "unreached", place))
                yield Breach(path, line, f"no patch adds the line {entry.line!r}", "take the entry out")


def _checks(case: Case, lane: str) -> Iterator[str]:
    """The names of the checks in the lane's newest receipt; none without a receipt."""
    if lane in case.newest:
        receipt = read(case.newest[lane])
        yield from (check.name for arm in (*receipt.pristine, *receipt.patched) for check in arm.checks)
