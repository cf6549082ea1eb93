"""What one release or commit is by what its pristine arms observed, and the range that answers in a row give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from patchlane.base.wording import short
from reproducers.base.verdicts import Verdict
from reproducers.evidence import receipts, shelf
from reproducers.record import engine
from reproducers.record.origin import Built
from reproducers.record.receipt import Arm, Check, Statement
from reproducers.record.schema import Pack
from reproducers.trial.rulings import Ruling, failed_guards, rule_pristine

NO_MODULE = re.compile(r"this tree has no module [\w.]+")  # what the probe says of a tree without the module asked for
UNMADE = "made no bug check"

NAMED = 4  # trees that a line names one by one


class Word(StrEnum):
    """The answer of one tree."""

    BUG = "bug"
    HEALTHY = "healthy"
    ABSENT = "code not there"
    CANNOT = "cannot test"


WORDS = {Verdict.REPRODUCED: Word.BUG, Verdict.FIXED_UPSTREAM: Word.HEALTHY}


class Answer(NamedTuple):
    """What a tree is, why, and the receipt that shows it.

    ``tree``: a release or a full SHA. ``receipt``: None where not even a receipt could be made. ``kept``: the receipt
    was there before. ``repeats``: pristine arms that agree on it.
    """

    tree: str
    word: Word
    why: str
    receipt: Path | None = None
    kept: bool = False
    repeats: int = 0

    @property
    def receipt_name(self) -> str:
        """The receipt as ``NN/NAME.json``, as the manifest calls it; "" without one."""
        return f"{self.receipt.parent.name}/{self.receipt.name}" if self.receipt else ""

    def as_json(self) -> dict[str, object]:
        """With the receipt by its name."""
        return {
            "tree": self.tree,
            "answer": self.word.value,
            "why": self.why,
            "receipt": self.receipt_name or None,
            "kept": self.kept,
            "repeats": self.repeats,
        }


def of_arms(arms: Sequence[Arm], ruling: Ruling, check: str | None = None) -> tuple[Word, str]:
    """(answer, why) of pristine arms; of a run without one, whose ``ruling`` says why.

    ``check``: the name of a bug check, or a shell pattern of such names. The answer is then theirs alone, whatever
    other bug checks show.
    """
    if not arms:
        return Word.CANNOT, _with(ruling)
    each = [_of_arm(arm) if check is None else _of_checks(arm, check) for arm in arms]
    words = {word for word, _ in each}
    return each[0] if len(words) == 1 else (Word.CANNOT, f"repeats disagree: {', '.join(sorted(words))}")


def _of_arm(arm: Arm) -> tuple[Word, str]:
    ruling = rule_pristine(arm)
    word = _word(arm, ruling)
    return word, arm.reason if word is not Word.CANNOT else _with(ruling)


def _of_checks(arm: Arm, pattern: str) -> tuple[Word, str]:
    """What the bug checks that a pattern names show; other ones may fail, but guards must hold."""
    word, why = _of_arm(arm)
    if arm.outcome == "cannot_test":
        return word, why
    bugs = [check for check in arm.checks if check.role == "bug"]
    asked = [check for check in bugs if check.name == pattern] or [c for c in bugs if fnmatchcase(c.name, pattern)]
    differing = "; ".join(check.name for check in bugs if check.state == "different")
    if arm.outcome == "different" and arm.reason != differing:
        return Word.CANNOT, why  # the arm itself failed: it was killed, say, or changed its tree
    if failed := failed_guards(arm):
        return Word.CANNOT, f"guards fail: {', '.join(failed)}"
    if not asked:
        known = ", ".join(repr(check.name) for check in bugs) or "none"
        return Word.CANNOT, f"it {UNMADE} {pattern!r}; its bug checks: {known}"
    for state, found in (("bug", Word.BUG), ("healthy", Word.HEALTHY)):
        shown = [check for check in asked if check.state == state]
        if shown and (found is Word.BUG or shown == asked):
            return found, "; ".join(map(_told, shown))
    return Word.CANNOT, "; ".join(f"{_told(check)} ({check.state})" for check in asked if check.state != "healthy")


def _told(check: Check) -> str:
    return f"{check.name}: {check.measured}"


def _word(arm: Arm, ruling: Ruling) -> Word:
    if arm.outcome == "cannot_test" and NO_MODULE.match(arm.reason):
        return Word.ABSENT
    return WORDS.get(ruling.verdict, Word.CANNOT)


def _with(ruling: Ruling) -> str:
    """The reason, with the verdict where it is more than that nothing could be tested."""
    return ruling.reason if ruling.verdict is Verdict.UNTESTABLE else f"{ruling.verdict}: {ruling.reason}"


class Asked(NamedTuple):
    """What is asked of each tree: the checks of this name or pattern alone, the tree as this build left it."""

    check: str | None = None
    built: Built | None = None


ALL_CHECKS = Asked()


def kept(
    pack: Pack, lane: str, tree: str, folders: Iterable[Path], repeats: int = 1, asked: Asked = ALL_CHECKS
) -> Answer | None:
    """What the newest receipt of this reproducer on this tree says, None where no folder has one with enough repeats.

    A receipt that could not test holds only for the engine that took it, and only where an arm ran. One that is not
    whole is passed over.
    """
    paths = [path for folder in folders for path in shelf.chain(folder / f"{pack.number:02d}")]
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        try:
            body = receipts.statement_of(path)
        except PatchlaneError:
            continue
        if body.details.lane != lane or body.digests.get("reproducer.py") != file_sha256(pack.reproducer):
            continue
        answer = _of_receipt(body, tree, path, asked)
        if answer is None or answer.repeats < repeats:
            continue
        if answer.word is not Word.CANNOT or body.digests.get("engine") == engine.digest():
            return answer
    return None


def _of_receipt(body: Statement, tree: str, path: Path, asked: Asked) -> Answer | None:
    """What a receipt says of a tree: by its pristine arm, or a guard's by the arm of the fixed release."""
    seen = body.details
    for place, arms in enumerate((seen.pristine, seen.fixed)):
        origin = body.subject[place].annotations if place < len(body.subject) else None
        named = (
            origin is not None and not origin.dirty and not origin.stacked_on and tree in (origin.release, origin.sha)
        )
        if named and arms and origin is not None and _same(origin.built, asked.built):
            word, why = of_arms(arms, Ruling(seen.verdict, seen.reason), asked.check)
            return Answer(tree, word, why, path, True, len(arms))
    return None


def _same(built: Built | None, wanted: Built | None) -> bool:
    """Whether a tree was built by the same command; of the tree that it would be built from its SHA tells already."""
    if built is None or wanted is None:
        return built is wanted
    return built.model_copy(update={"source": wanted.source}) == wanted


def affected(answers: Sequence[Answer]) -> list[str]:
    """The ranges with the bug over answers in order, one line each.

    A tree without the bug, or without the code, ends a range; one that cannot be tested does not, and is named.
    """
    lines, bugs, doubted, unclear = list[str](), list[Answer](), list[Answer](), list[Answer]()
    waiting = list[Answer]()  # what cannot be tested after the last bug: inside the range only when another bug follows
    before: Answer | None = None
    for answer in [*answers, None]:
        if answer is not None and answer.word is Word.CANNOT:
            waiting.append(answer)
            continue
        if answer is not None and answer.word is Word.BUG:
            if bugs:
                doubted += waiting
            else:
                unclear = waiting
            bugs.append(answer)
            waiting = []
            continue
        if bugs:
            lines.append(_range(bugs, doubted, (before, unclear), (answer, waiting)))
        before, bugs, doubted, waiting = answer, [], [], []
    return lines or ["no tree shows the bug"]


Edge = tuple[Answer | None, list[Answer]]


def _range(bugs: list[Answer], doubted: list[Answer], before: Edge, after: Edge) -> str:
    ends = [short(bugs[0].tree), short(bugs[-1].tree)]
    said = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    notes = [f"{len(bugs)} show the bug"]
    for name, (answer, unclear) in (("before", before), ("after", after)):
        if unclear:
            notes.append(f"{name} it not testable: {_names(unclear)}")
        notes.append(f"{name} it {short(answer.tree)} {answer.word.value}" if answer else f"nothing known {name} it")
    if doubted:
        notes.append(f"inside it not testable: {_names(doubted)}")
    return f"{said} ({'; '.join(notes)})"


def _names(answers: list[Answer]) -> str:
    return listed([short(answer.tree) for answer in answers])


def listed(names: list[str]) -> str:
    """Names one by one, or where there are many the first and the last."""
    return ", ".join(names) if len(names) <= NAMED else f"{names[0]} to {names[-1]} ({len(names)} of them)"
