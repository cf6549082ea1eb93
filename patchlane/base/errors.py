"""Errors for people: what happened, where, and the command that mends it."""

from __future__ import annotations

from patchlane.base.exits import Exit


class PatchlaneError(Exception):
    """An expected failure. The verb ends with ``exit_code``; the command or step ``remedy`` mends the failure."""

    exit_code: Exit = Exit.USAGE

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.remedy}" if self.remedy else self.what


def from_git(path: object) -> str:
    """The command that brings a committed file or folder back, also where its removal is staged."""
    return f"git checkout HEAD -- {path}"


class CannotTestHere(PatchlaneError):
    """The host lacks something (network, clone, GPU, package) that the run needs."""

    exit_code = Exit.CANNOT_TEST


class StoreError(PatchlaneError):
    """A fetched artefact or cached tree does not have its digest, an archive is unsafe, or a lock stays taken."""
