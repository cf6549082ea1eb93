"""The archive of a folder of records: superseded ones, read like files.

``archive.tar.xz`` holds each record and its log, ``archive.json`` a line a member in the order of the tar: name, the
digests of record and log, its verdict and its predecessor. Members are only ever added at the end, so that each digest
over the first lines, which later receipts and the manifest name, stays one of the archive's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path, PurePath

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from patchlane.base import disk
from patchlane.base.errors import StoreError, from_git
from patchlane.base.files import bytes_of, file_sha256, record_json, write_atomic
from reproducers.kept import xz

TAR, INDEX = "archive.tar.xz", "archive.json"
NAME = re.compile(r"[\w-]{1,200}\.json", re.A)
LARGEST = 2**29  # bytes of what an archive unpacks to
HELD = 64  # archives in memory
AGAIN = "python -m reproducers.receipts archive"


class Member(BaseModel):
    """A record in the archive. ``log_sha256``: None of a record without a log; ``previous``: as the record says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    sha256: str
    log_sha256: str | None
    verdict: str | None
    previous: str | None

    @property
    def files(self) -> dict[str, str]:
        """{file: its digest} in the order of the tar."""
        log = {PurePath(self.name).with_suffix(".log").name: self.log_sha256} if self.log_sha256 else {}
        return {self.name: self.sha256, **log}

    @property
    def line(self) -> str:
        return json.dumps(self.model_dump(), sort_keys=True)


MEMBERS = TypeAdapter(list[Member])
State = tuple[int, ...]


def remedy(folder: Path) -> str:
    """The command that restores the archive of ``folder``; where a kill left it half-written, the one that ends it."""
    with contextlib.suppress(StoreError):
        if (more := _beyond(folder)) and _open(folder, more):
            return AGAIN
    return _git(folder)


def _git(folder: Path) -> str:
    return from_git(f"{folder / INDEX} {folder / TAR}")


def members(folder: Path) -> list[Member]:
    """The archive's members, in its order; none where there is no archive.

    Raises StoreError if one of its files is missing, or ``archive.json`` is not as it was written.
    """
    there = [(folder / name).is_file() for name in (INDEX, TAR)]
    if all(there):
        return _members(folder, _state(folder))
    if there[0]:
        raise StoreError(f"{folder / TAR} is missing", _git(folder))
    if there[1]:
        raise StoreError(f"{folder / INDEX} is missing", remedy(folder))
    return []


def names(folder: Path, pattern: str = "*.json") -> list[str]:
    """The names of the archived records that match the pattern. Raises as ``members`` does."""
    return [member.name for member in members(folder) if PurePath(member.name).match(pattern)]


def listed(folder: Path, pattern: str = "*.json") -> list[Path]:
    """The records of a folder that match the pattern, open or archived, by name. Raises as ``members`` does."""
    return sorted({*folder.glob(pattern), *(folder / name for name in names(folder, pattern))} - {folder / INDEX})


def digests(folder: Path) -> dict[str, str]:
    """{file of a member: its digest}, in the archive's order. Raises as ``members`` does."""
    return _digests(folder, _state(folder)) if members(folder) else {}


def exists(path: Path) -> bool:
    """Whether there is a record or a log ``path``, open or archived. Raises as ``members`` does."""
    return path.is_file() or path.name in digests(path.parent)


def data(path: Path) -> bytes:
    """The bytes of a record or a log, open or archived.

    FileNotFoundError where there is neither, StoreError where the archive is not what its index says.
    """
    if path.exists() or path.name not in digests(path.parent):
        return bytes_of(path)
    return _contents(path.parent, _state(path.parent))[path.name]


def sha256(path: Path) -> str:
    """The digest of a record or a log, of an archived one as the index states it. Raises as ``data`` does."""
    return file_sha256(path) if path.exists() else digests(path.parent).get(path.name) or file_sha256(path)


def real(path: Path) -> Path:
    """The path with its links resolved; an archived one's beside the archive."""
    index = path.with_name(INDEX)
    return index.resolve().with_name(path.name) if not path.exists() and index.exists() else path.resolve()


def state(path: Path) -> State:
    """What tells the archive that would hold ``path`` and that was not touched since; nothing where there is none."""
    return _state(path.parent)


def heads(folder: Path) -> list[str]:
    """For each number of members, from one on, the digest over so many. Raises as ``members`` does."""
    running, found = hashlib.sha256(), []
    for member in members(folder):
        running.update(f"{member.line}\n".encode())
        found.append(running.hexdigest())
    return found


def faults(folder: Path) -> list[str]:
    """What is wrong with the archive of ``folder``, a line each; none without an archive."""
    try:
        held = members(folder)
        if held:
            _contents(folder, _state(folder))
            return _more(folder, held)
    except StoreError as error:
        return [error.what]
    return []


def held(path: Path) -> bytes | None:
    """The bytes that the archive has of a record or a log, whether it lies open too or not; None of no member.

    Raises StoreError where the archive is not what its index says.
    """
    return _contents(path.parent, _state(path.parent))[path.name] if path.name in digests(path.parent) else None


def mend(folder: Path) -> None:
    """End what a kill left between the tar and its index: what the tar holds beyond the index, which still lies open,
    is forgotten."""
    more = _beyond(folder)
    if more and _open(folder, more):
        if (folder / INDEX).is_file():
            _write(folder, members(folder), _contents(folder, _state(folder)))
        else:
            (folder / TAR).unlink()


def add(folder: Path, new: list[tuple[Member, dict[str, bytes]]]) -> None:
    """Append members with the content of their files, whole or not at all.

    Raises PatchlaneError where the host has no room, StoreError where the archive is damaged or was not written right.
    """
    if rows := faults(folder):
        raise StoreError(f"{folder}: {'; '.join(rows)}", remedy(folder))
    before = members(folder)
    known = {member.name for member in before}
    added = [(member, files) for member, files in new if member.name not in known]
    if added:
        contents = dict(_contents(folder, _state(folder))) if before else {}
        for _, files in added:
            contents |= files
        _write(folder, [*before, *(member for member, _ in added)], contents)


def _write(folder: Path, held: list[Member], contents: dict[str, bytes]) -> None:
    with disk.writing(folder, f"{disk.FULL}, then: {AGAIN}"):
        write_atomic(folder / TAR, xz.packed(_tar(held, contents)))  # first: an index alone would name what is nowhere
        write_atomic(folder / INDEX, _text(held))
    if rows := faults(folder):
        raise StoreError("; ".join(rows), f"try another disk: df {folder}")


def _beyond(folder: Path) -> list[tuple[str, bytes]]:
    """(name, content) of what the tar holds beyond its index."""
    if not (folder / TAR).is_file():
        return []
    return _unpacked(folder)[len(digests(folder)) if (folder / INDEX).is_file() else 0 :]


def _open(folder: Path, found: list[tuple[str, bytes]]) -> bool:
    """Whether all of them lie open in the folder."""
    return all(
        PurePath(name).name == name and (folder / name).is_file() and bytes_of(folder / name) == content
        for name, content in found
    )


def _text(held: list[Member]) -> bytes:
    return ("[\n" + ",\n".join(member.line for member in held) + "\n]\n").encode()


def _tar(held: list[Member], contents: dict[str, bytes]) -> bytes:
    """A tar of the members' files without times, owners and modes of this host: the same files give the same bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in (name for member in held for name in member.files):
            entry = tarfile.TarInfo(name)
            entry.size = len(contents[name])
            tar.addfile(entry, io.BytesIO(contents[name]))
    return made.getvalue()


def _state(folder: Path) -> State:
    stats = [path.stat() for path in (folder / INDEX, folder / TAR) if path.is_file()]
    return tuple(value for s in stats for value in (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino))


@functools.lru_cache(HELD)
def _members(folder: Path, state: State) -> list[Member]:
    path = folder / INDEX
    try:
        text = bytes_of(path)
        held = MEMBERS.validate_python(record_json(text.decode()))
    except (ValueError, ValidationError) as error:
        raise StoreError(f"{path} is malformed: {str(error).splitlines()[0]}", _git(folder)) from error
    found = [member.name for member in held]
    if odd := [name for name in found if not NAME.fullmatch(name) or found.count(name) > 1]:
        raise StoreError(f"{path} names {odd[0]!r}, which no record of a folder is called, or twice", _git(folder))
    if text != _text(held) or not held:
        raise StoreError(f"{path} is not as it was written", _git(folder))
    return held


@functools.lru_cache(HELD)
def _digests(folder: Path, state: State) -> dict[str, str]:
    return {name: digest for member in _members(folder, state) for name, digest in member.files.items()}


@functools.lru_cache(HELD)
def _contents(folder: Path, state: State) -> dict[str, bytes]:
    """{file: its bytes} of all members. Raises StoreError at the first that is not what the index says."""
    path, contents = folder / TAR, dict[str, bytes]()
    wanted = digests(folder)
    for name, content in _unpacked(folder):
        if len(contents) == len(wanted):
            break  # ``faults`` names what follows
        due = [*wanted][len(contents)]
        if name != due:
            raise StoreError(f"{path} holds {name!r} where {INDEX} names {due}", _git(folder))
        if hashlib.sha256(content).hexdigest() != wanted[name]:
            raise StoreError(f"{path}: {name} is not the one that {INDEX} names", _git(folder))
        contents[name] = content
    if len(contents) < len(wanted):
        raise StoreError(f"{path} has no {[*wanted][len(contents)]}, which {INDEX} names", _git(folder))
    return contents


def _unpacked(folder: Path) -> list[tuple[str, bytes]]:
    path = folder / TAR
    raw = xz.unpacked(path, bytes_of(path), LARGEST)
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
            for entry in tar:
                content = tar.extractfile(entry) if entry.isreg() else None
                if content is None:
                    raise StoreError(f"{path} holds {entry.name!r}, which is no file", _git(folder))
                found.append((entry.name, content.read()))
    except (tarfile.TarError, ValueError) as error:
        raise StoreError(f"{path} is no tar: {error}", _git(folder)) from error
    return found


def _more(folder: Path, held: list[Member]) -> list[str]:
    """What the tar is beyond its members' files. What a kill left there lies open, and is lost nowhere."""
    if more := _beyond(folder):
        return [f"{TAR} holds {more[0][0]!r}, which {INDEX} does not name"]
    raw = xz.unpacked(folder / TAR, bytes_of(folder / TAR), LARGEST)
    same = raw == _tar(held, _contents(folder, _state(folder)))
    return [] if same else [f"{TAR} is not as it was written"]
