"""Distribution, version and commit that a URL or a path names: a repository, an archive of one, a wheel, an sdist."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ARCHIVE = re.compile(r"^/([^/]+)/([^/]+)/(?:archive|tarball|zipball|zip|tar\.gz)/(?:refs/(?:tags|heads)/)?(.+)$")
SCP = re.compile(r"(?:ssh://)?[\w.-]+@([\w.-]+):(?!\d+/)(.+)")  # git@github.com:OWNER/NAME.git
EGG = re.compile(r"(?:^|&)egg=([A-Za-z0-9._-]+)")
TAG = re.compile(r"(?:core_)?v?(\d+(?:\.\d+)+\S*)")
COMMIT = re.compile(r"[0-9a-f]{7,40}")
HOSTS = ("github.com", "codeload.github.com", "gitlab.com", "bitbucket.org", "codeberg.org")


class Source(NamedTuple):
    """What is known of it; "" or None: not told. ``repository``: "owner/name"."""

    name: str = ""
    version: str | None = None
    repository: str = ""
    ref: str = ""


def of_url(url: str, repositories: dict[str, str]) -> Source:
    """What a URL or a path installs. ``repositories``: {"owner/name" in lower case: distribution}."""
    plain = url.removeprefix("git+")
    if scp := SCP.fullmatch(plain):
        plain = f"ssh://{scp[1]}/{scp[2]}"
    try:
        parts = urlsplit(plain)
    except ValueError:  # brackets of no address
        return Source()
    path, egg = unquote(parts.path), EGG.search(parts.fragment)
    name = egg[1] if egg else ""
    if parts.hostname in HOSTS and (archive := ARCHIVE.match(path)):
        ref = re.sub(r"\.(zip|tar\.gz|tgz)$", "", archive[3])
        return _of_repository(f"{archive[1]}/{archive[2]}", ref, name, repositories)
    if (found := of_filename(PurePosixPath(path).name)).name:
        return found
    if is_repository(url):
        place, _, ref = path.strip("/").partition("@")
        return _of_repository(place.removesuffix(".git"), ref, name, repositories)
    return Source(name)


def is_repository(url: str) -> bool:
    """Whether a URL is one that git clones."""
    plain = url.removeprefix("git+")
    if SCP.fullmatch(plain) or plain != url or plain.startswith(("git://", "ssh://")):
        return True
    try:
        return urlsplit(plain).path.endswith(".git") or urlsplit(plain).hostname in HOSTS
    except ValueError:
        return False


def _of_repository(place: str, ref: str, egg: str, repositories: dict[str, str]) -> Source:
    """A fork keeps its upstream's last name as a rule, which so tells the distribution."""
    place = "/".join(place.split("/")[-2:])
    by_name = {known.rpartition("/")[2]: name for known, name in repositories.items()}
    name = egg or repositories.get(place.lower()) or by_name.get(place.lower().rpartition("/")[2], "")
    return Source(name, None, place, ref)


def of_filename(filename: str) -> Source:
    """Name and version of a wheel's or an sdist's file name."""
    try:
        if filename.endswith(".whl"):
            wheel = parse_wheel_filename(filename)
            return Source(wheel[0], str(wheel[1]))
        if filename.endswith((".tar.gz", ".zip")):
            sdist = parse_sdist_filename(filename)
            return Source(sdist[0], str(sdist[1]))
    except (InvalidWheelFilename, InvalidSdistFilename):
        pass
    return Source()


def version_of_tag(ref: str) -> str | None:
    """``0.19.0`` of the tags ``v0.19.0`` and ``core_v0.19.0``; None of a branch or a commit."""
    found = TAG.fullmatch(ref.removeprefix("refs/tags/"))
    try:
        return str(Version(found[1])) if found else None
    except InvalidVersion:
        return None


def is_commit(ref: str) -> bool:
    """Whether a ref looks like a commit's hash, whole or cut to seven digits or more."""
    return bool(COMMIT.fullmatch(ref)) and any(sign.isdigit() for sign in ref)
