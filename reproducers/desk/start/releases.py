"""Releases as ``packs/releases.yaml`` gets them: what the package index and the upstream's tags say of one."""

from __future__ import annotations

from pathlib import Path

import yaml
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.desk.start import known
from reproducers.record.schema import RELEASES, Release, load_releases
from reproducers.upstream import index

HEAD = """\
# Every release that packs, needs and stacks name, with its files by digest as the package index states them.
# Generated: `python -m reproducers.release DISTRIBUTION RELEASE` adds one.
"""
INTERPRETERS = {"py3", "cp311", "cp312"}


def published(distribution: str, release: str, repo: str | None) -> Release:
    """A release: its files for Linux on x86_64, and the SHA that ``repo`` (OWNER/NAME) has tagged with it.

    Raises CannotTestHere if the index does not answer, NoSuchRelease if it lacks the release, PatchlaneError if the
    release has no file for us.
    """
    files = index.release_files(distribution, release)
    usable = {name: digest for name, digest in files.items() if _usable(name)}
    usable = usable or {name: digest for name, digest in files.items() if not name.endswith(".whl")}
    if not usable:
        what = f"{distribution} {release} has neither an sdist nor a wheel for Linux on x86_64"
        raise PatchlaneError(what, "take another release, or pin a commit by hand")
    sha = known.tagged(repo, release) if repo else None
    return Release(sha=sha, python=index.python_of(distribution, release), artifacts=usable)


def _usable(filename: str) -> bool:
    """Whether it is a wheel for Linux on x86_64 and one of our Python versions."""
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    return any(
        (tag.interpreter in INTERPRETERS or tag.abi == "abi3")
        and (tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith("x86_64")))
        for tag in tags
    )


def add(packs: Path, found: dict[tuple[str, str], Release]) -> None:
    """Write {(distribution, release): what is known of it} into releases.yaml, which is made where there is none."""
    if not found:
        return
    every = {name: dict(own) for name, own in load_releases(packs).items()}
    for (distribution, release), one in found.items():
        every.setdefault(distribution, {})[release] = one
    with disk.writing(packs, "make room there, or take a checkout that you may write"):
        write_atomic(packs / RELEASES, text(every).encode())
    load_releases.cache_clear()


def text(releases: dict[str, dict[str, Release]]) -> str:
    """The text of releases.yaml: distributions by name, releases in their order."""
    rows = {
        name: {release: own[release].model_dump(exclude_none=True) for release in sorted(own, key=_order)}
        for name, own in sorted(releases.items())
    }
    return HEAD + yaml.safe_dump(rows, sort_keys=False, width=1000)


def _order(release: str) -> tuple[bool, Version, str]:
    try:
        return True, Version(release), release
    except InvalidVersion:
        return False, Version("0"), release
