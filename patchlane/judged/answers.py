"""A pack's answer for an environment, and what is best done about a distribution."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from patchlane.base.exits import Exit
from patchlane.listed.reading import Line

State = Literal["buggy", "patched", "fixed", "unknown", "absent"]
STATES = {
    "buggy": "the bug is there, and no patch",
    "patched": "the pack's patch is in the code",
    "fixed": "the code is that of a release or commit without the bug",
    "unknown": "nobody has measured this code, or what is installed is not told; the fix line says what decides",
    "absent": "the code in question is not installed, or not required",
}


@dataclass(frozen=True)
class Place:
    """A function in question in the environment, or the line that asks for the distribution."""

    file: str
    line: int
    function: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One pack's answer. ``by``: what it rests on; ``cost``: what the bug costs a training run.

    ``harm`` and ``effect``: what it does to a run, as a word and as measured, where the pack says it.

    ``version``: of a file that names a commit or tag instead, this. ``label``: the release or commit whose code it is.
    ``remedy`` mends this bug alone, ``release`` installs the release of the distribution with the fewest known bugs,
    where it has fewer. ``patch``: the pack's file that mends this code, ``root``: the folder that it is for.
    ``measurable``: a run of the reproducer on the installed code would decide.
    """

    pack: str
    state: State
    distribution: str
    version: str | None = None
    by: Literal["code", "release", "run", ""] = ""
    label: str = ""
    cost: str
    harm: str | None = None
    effect: str | None = None
    reason: str
    remedy: str = ""
    release: str = ""
    patch: str = ""
    root: str = ""
    places: tuple[Place, ...] = ()
    measurable: bool = False

    @property
    def mend(self) -> str:
        """All that mends it, as one line."""
        return " or ".join(dict.fromkeys(way for way in (self.release, self.remedy) if way))


@dataclass(frozen=True)
class Advice:
    """The release of a distribution that has the fewest known bugs, where it has fewer than what is there.

    ``stays``: the packs whose bugs it has; ``unknown``: those that no receipt judges there. ``reason``: why pip must
    be forced.
    """

    distribution: str
    release: str
    command: str
    stays: list[str]
    unknown: list[str]
    reason: str = ""


def exit_code(answers: list[Answer], unread: list[Line], fails: Collection[str] = ()) -> Exit:
    """1 where a bug is unpatched; 77 where nothing could be decided or a line was not understood; else 0.

    ``fails``: the harms that count, all where there are none; a bug whose harm is not known counts always.
    """
    states = {answer.state for answer in answers}
    if any(answer.state == "buggy" and (not fails or answer.harm in (None, *fails)) for answer in answers):
        return Exit.CONTRADICTED
    return Exit.OK if states & {"buggy", "patched", "fixed"} and not unread else Exit.CANNOT_TEST
