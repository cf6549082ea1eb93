"""Commits of a clone between two ends, in the order in which git itself would try them."""

from __future__ import annotations

from pathlib import Path

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.record.schema import Pack
from reproducers.upstream.git import commit, git, tagged


def named(pack: Pack, clone: Path, names: list[str]) -> list[str]:
    """The full SHA of each name, a pin's, tag, release or SHA, in a clone. PatchlaneError for one that it has not."""
    shas = []
    for name in map(str.strip, names):
        pin = pack.pins.get(pack.pin_name(name) or "")
        release = pin.release if pin else name
        sha = (pin.sha if pin else None) or commit(clone, name) or tagged(clone, str(release))
        if sha is None or commit(clone, sha) is None:
            raise PatchlaneError(f"{clone} has no commit {name}", "name one that git -C CLONE log shows")
        shas.append(sha)
    return shas


def fork(clone: Path, old: str, new: str) -> str:
    """``old`` if it is an ancestor of ``new``, else where their histories part; PatchlaneError if they never met."""
    done = git("merge-base", old, new, cwd=clone)
    if done.returncode:
        raise PatchlaneError(f"{old[:12]} and {new[:12]} have no common history in {clone}", "--good and --bad of one")
    return done.stdout.split()[0]


def between(clone: Path, olds: list[str], new: str) -> list[str]:
    """Commits after one of ``olds`` that ``new`` has and none of them: the best to try next first, ``new`` too.

    A line that parted before the first old one is left out, for it never had what that one has; a change that came
    by such a line is its merge's.
    """
    done = git("rev-list", "--bisect-all", "--ancestry-path", new, *(f"^{old}" for old in olds), cwd=clone)
    if done.returncode:
        raise CannotTestHere(f"git rev-list: {done.stderr.strip()[:200]}", f"git -C {clone} fsck")
    return [line.split()[0] for line in done.stdout.splitlines() if line]


def parents(clone: Path, sha: str) -> list[str]:
    """The SHAs of a commit's parents, none of a root."""
    return git("rev-list", "--parents", "-n", "1", sha, cwd=clone).stdout.split()[1:]


def title(clone: Path, sha: str) -> str:
    """Day and subject of a commit."""
    return git("show", "-s", "--format=%cs %s", sha, cwd=clone).stdout.strip()
