"""Between which trees a bisection searches."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from patchlane.base.errors import PatchlaneError
from reproducers.record.goal import Goal
from reproducers.record.schema import Pack
from reproducers.studies.versions import commits, releases
from reproducers.studies.versions.bisecting import Commits, History, Releases
from reproducers.upstream import git, pins


def of(pack: Pack, goal: Goal, good: str | None, bad: str | None, clone: Path | None) -> tuple[History, str, str]:
    """(history, old end, new end). ``bad`` is the live pin by default.

    ``good`` is by default for ``fixed`` the newest release or the clone's HEAD, for ``introduced`` the oldest release.
    PatchlaneError where an end is in neither index nor clone, or the old one is not before the new one.
    """
    if clone is None:
        return _releases(pack, goal, good, bad)
    if not clone.is_dir() or git.commit(clone, "HEAD") is None:
        raise PatchlaneError(f"--git {clone}: no clone", "git clone URL DIR, then --git DIR")
    if good is None and goal is Goal.INTRODUCED:
        raise PatchlaneError(
            "--git --for introduced wants a commit without the bug", "--good SHA, or a tag of the clone"
        )
    (known_bad,) = commits.named(pack, clone, [bad or "live"])
    known_good = commits.named(pack, clone, [good])[0] if good else str(git.commit(clone, "HEAD"))
    old, new = (known_good, known_bad) if goal is Goal.INTRODUCED else (known_bad, known_good)
    return Commits(clone), commits.fork(clone, old, new), new


def _releases(pack: Pack, goal: Goal, good: str | None, bad: str | None) -> tuple[History, str, str]:
    names = releases.choose(pack.upstream.distribution).taken
    known_bad = _release(pack, bad or "live", "--bad")
    known_good = _release(pack, good, "--good") if good else names[-1 if goal is Goal.FIXED else 0]
    old, new = (known_good, known_bad) if goal is Goal.INTRODUCED else (known_bad, known_good)
    names = sorted({*names, old, new}, key=Version)
    if names.index(old) >= names.index(new):
        option = "--good" if goal is Goal.FIXED else "--bad"
        raise PatchlaneError(f"--for {goal}: {old} is not before {new}", f"{option} names a release after {old}")
    return Releases(names), old, new


def _release(pack: Pack, name: str, option: str) -> str:
    """The release that a pin's name or a release names."""
    at = pins.settle(pack, name)
    pin = pack.pins.get(at)
    release = pin.release if pin else at
    if release is None or pins.SHA.fullmatch(release):
        raise PatchlaneError(f"{option} {name} is a commit, and releases are searched", "--git CLONE, or a release")
    return release
