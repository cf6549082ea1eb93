"""Where a bug came or went: the boundary between two ends, over releases or over the commits of a clone.

A tree is ``old`` or ``new``: for ``introduced`` new means that the bug is there, for ``fixed`` that it is gone. Trees
that cannot be tested are straddled. A tree without the code has no bug: it is old for ``introduced``; for ``fixed`` it
decides nothing, as the code may only have moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers.record.goal import Goal
from reproducers.studies.versions import commits
from reproducers.studies.versions.answers import UNMADE, Answer, Word
from reproducers.studies.versions.asking import Asker

OLD = {Goal.INTRODUCED: (Word.HEALTHY, Word.ABSENT), Goal.FIXED: (Word.BUG,)}
NEW = {Goal.INTRODUCED: (Word.BUG,), Goal.FIXED: (Word.HEALTHY,)}


class Unstable(PatchlaneError):
    """The same tree answered otherwise when it was asked again: nothing is proved."""

    exit_code = Exit.CONTRADICTED


class History(Protocol):
    """Trees between two ends."""

    def candidates(self, olds: list[str], new: str) -> list[str]:
        """Trees after every old one and before ``new``, the best to try next first."""

    def neighbour(self, olds: list[str], new: str) -> str:
        """The old tree that is nearest before ``new``."""


class Releases:
    """Releases in their order."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def candidates(self, olds: list[str], new: str) -> list[str]:
        """From the middle outwards."""
        first, last = max(map(self.names.index, olds)), self.names.index(new)
        inner = self.names[first + 1 : last]
        return sorted(inner, key=lambda name: abs(2 * self.names.index(name) - first - last))

    def neighbour(self, olds: list[str], new: str) -> str:
        """The last of them."""
        return max(olds, key=self.names.index)


class Commits:
    """The commits of a clone; merges are followed on all sides."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone

    def candidates(self, olds: list[str], new: str) -> list[str]:
        """As git's own bisection orders them."""
        return [sha for sha in commits.between(self.clone, olds, new) if sha != new]

    def neighbour(self, olds: list[str], new: str) -> str:
        """A parent where one was tried, else the last that was."""
        above = commits.parents(self.clone, new)
        return next((sha for sha in reversed(olds) if sha in above), olds[-1])


@dataclass(frozen=True)
class Boundary:
    """``old`` and ``new`` stand next to each other but for ``straddled``, which cannot be tested.

    ``beyond``: the nearest tree tried after ``new``, where there is one. ``tried``: every answer, in the order asked.
    """

    goal: Goal
    old: Answer
    new: Answer
    straddled: list[Answer]
    beyond: Answer | None
    tried: list[Answer]


def search(asker: Asker, history: History, goal: Goal, old: str, new: str, repeats: int) -> Boundary:
    """The boundary between two ends that are verified first; it is then asked ``repeats`` times.

    PatchlaneError where an end is not what ``goal`` begins or ends with, CannotTestHere where an end cannot be tested,
    Unstable where the boundary answers otherwise the second time.
    """
    answers = {old: _end(asker, goal, old, OLD[goal], "--bad" if goal is Goal.FIXED else "--good")}
    answers[new] = _end(asker, goal, new, NEW[goal], "--good" if goal is Goal.FIXED else "--bad")
    olds, skipped = [old], list[str]()
    beyond: Answer | None = None
    while left := [tree for tree in history.candidates(olds, new) if tree not in skipped]:
        tree = left[0]
        answers[tree] = asker.ask(tree)
        if answers[tree].word in NEW[goal]:
            beyond, new = answers[new], tree
        elif answers[tree].word in OLD[goal]:
            olds.append(tree)
        else:
            skipped.append(tree)
    between = history.candidates(olds, new)
    before = history.neighbour(olds, new)
    last, first = (_again(asker, answers[tree], repeats) for tree in (before, new))
    return Boundary(goal, last, first, [answers[tree] for tree in between], beyond, list(answers.values()))


def _end(asker: Asker, goal: Goal, tree: str, due: tuple[Word, ...], option: str) -> Answer:
    answer = asker.ask(tree)
    if answer.word is Word.CANNOT and UNMADE in answer.why:
        raise PatchlaneError(f"{asker.pack.id} at {tree}: {answer.why}", "--check names one of these")
    if answer.word is Word.CANNOT:
        raise CannotTestHere(f"{asker.pack.id} at {tree} cannot be tested: {answer.why}", f"{option} names another end")
    if answer.word not in due:
        raise PatchlaneError(
            f"{asker.pack.id} at {tree}: {answer.word}; --for {goal} wants {' or '.join(due)} there: {answer.why}",
            f"{option} names another end",
        )
    return answer


def _again(asker: Asker, answer: Answer, repeats: int) -> Answer:
    """The answer after as many repeats."""
    if answer.repeats >= repeats:
        return answer
    more = asker.ask(answer.tree, repeats)
    if more.word is not answer.word:
        what = f"{asker.pack.id} at {answer.tree}: {answer.word} first, then {more.word}: {more.why}"
        raise Unstable(what, f"python -m reproducers.run {' '.join(asker.command(answer.tree, repeats))} -v")
    return more
