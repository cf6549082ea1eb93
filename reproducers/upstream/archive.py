"""Unpack wheels and sdists without trusting them: nothing outside the folder, no links out, no devices, no bombs."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import lzma
import posixpath
import shlex
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from patchlane.base.errors import StoreError
from patchlane.base.files import astray, file_sha256, within

MAX_BYTES = 3 * 2**30
MAX_MEMBERS = 100_000
MAX_RATIO = 100  # real packages are under 10
RATIO_FROM = 2**22  # bytes unpacked
PADDING = 2**20  # bytes of zeros that may follow a tar's end
OVERHEAD = 8192  # bytes of headers that a member of a tar may have, long names and times included
LOCAL, END = b"PK\3\4", b"PK\5\6"  # begin a zip's first member, and its last record
END_BYTES, LOCAL_BYTES = 22, 30
DESCRIPTORS = (12, 16, 20, 24)  # bytes of sizes that may follow a member that was written without knowing them
HOST = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
}  # of any other error the archive's names are the cause
SPREAD = ("purelib", "platlib")  # folders of a wheel's NAME.data that are installed beside its other files


# What the libraries raise for an archive that is damaged, encrypted, nested too deep or packed in an unknown way.
REFUSALS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    OverflowError,
)


def unpack(archive: Path, target: Path) -> None:
    """Unpack ``archive`` (.whl, .zip, .tar.gz) into the empty folder ``target``. Executes none of it.

    Strips a single top-level folder of an sdist. Raises StoreError if the archive is unsafe, absurd or not whole,
    OSError if this host refuses to write.
    """
    try:
        if archive.name.endswith((".whl", ".zip")):
            _unzip(archive, target)
        else:
            _untar(archive, target)
    except REFUSALS as error:
        if isinstance(error, OSError) and error.errno in HOST:
            raise
        raise StoreError(f"{archive.name}: refused or unreadable: {error}", _again(archive)) from error


def wheel_files(archive: Path) -> list[tuple[str, bool, str]]:
    """(path once unpacked, executable, sha256) of every file of a wheel, read from the wheel itself."""
    with zipfile.ZipFile(archive) as wheel:
        return [
            (name.as_posix(), _executable(info), hashlib.sha256(wheel.read(info)).hexdigest())
            for info, name in _placed(wheel)
            if not info.is_dir()
        ]


def listed(wheel: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """{path once unpacked: member} of a wheel's files. Raises StoreError for a name twice, or beyond all numbers."""
    placed = [(info, name) for info, name in _placed(wheel) if not info.is_dir()]
    about = Path(wheel.filename or "the wheel")
    if len(placed) > MAX_MEMBERS:
        raise StoreError(f"{about.name}: refused: {len(placed)} members are beyond any real package")
    _once(about, [name.as_posix() for _, name in placed])
    return {name.as_posix(): info for info, name in placed}


def _limit(archive: Path, sizes: list[int]) -> None:
    total, packed = sum(sizes), max(archive.stat().st_size, 1)
    if len(sizes) > MAX_MEMBERS or total > MAX_BYTES or (total > RATIO_FROM and total / packed > MAX_RATIO):
        raise StoreError(
            f"{archive.name}: refused: {len(sizes)} members of {total} bytes from {packed} is beyond any real package"
        )


def _untar(archive: Path, target: Path) -> None:
    with tarfile.open(archive, "r:gz", errorlevel=2) as tar:
        members, total = [], 0
        for member in tar:
            total += member.size
            members.append(member)
            if len(members) > MAX_MEMBERS or total > MAX_BYTES:
                break
        _limit(archive, [m.size for m in members])
        if tar.offset - total > PADDING + OVERHEAD * len(members):
            raise StoreError(
                f"{archive.name}: refused: {tar.offset - total} bytes of headers of {len(members)} members"
            )
        _check_members(archive, members)
        _check_end(archive, tar)
        tar.extractall(target, members, filter="data")
    tops = list(target.iterdir())
    if len(tops) == 1 and tops[0].is_dir() and not tops[0].is_symlink():
        lift(tops[0], target)


def _check_members(archive: Path, members: list[tarfile.TarInfo]) -> None:
    """Raise StoreError unless each name is relative, unique and in real folders, and no link leads through another."""
    names = [PurePosixPath(m.name).as_posix() for m in members if not m.isdir()]
    _once(archive, names)
    links = {PurePosixPath(m.name).as_posix() for m in members if m.issym()}
    for member in members:
        if why := astray(member.name) if PurePosixPath(member.name).parts else "":
            raise StoreError(f"{archive.name}: refused: member {member.name!r} {why}")
        if _through(PurePosixPath(member.name), links):
            raise StoreError(f"{archive.name}: refused: member {member.name!r} lies behind a link")
        if member.issym() or member.islnk():
            above = posixpath.dirname(member.name) if member.issym() else ""
            aim = PurePosixPath(above, member.linkname)
            end = posixpath.normpath(aim.as_posix())
            if end != "." and astray(end):
                raise StoreError(f"{archive.name}: refused: link {member.name!r} leaves the folder")
            if _through(aim, links) or (member.islnk() and aim.as_posix() in links):
                raise StoreError(f"{archive.name}: refused: link {member.name!r} leads through another link")


def _through(path: PurePosixPath, links: set[str]) -> bool:
    """Whether a folder above ``path`` is one of the links."""
    return any(parent.as_posix() in links for parent in path.parents)


def _once(archive: Path, names: list[str]) -> None:
    """Raise StoreError for a name given twice, or twice but for the case of letters: then it depends on the disk."""
    if len({name.casefold() for name in names}) < len(names):
        raise StoreError(f"{archive.name}: refused: it has a member twice, and nothing says which of them counts")


def _check_end(archive: Path, tar: tarfile.TarFile) -> None:
    """Raise StoreError unless two blocks of zeros end the tar: tarfile takes a bad header for the end."""
    stream: IO[bytes] = tar.fileobj  # type: ignore[assignment]
    stream.seek(tar.offset)
    rest = stream.read(PADDING + 1)  # to the end of the stream, where gzip compares its checksum
    if len(rest) < 2 * tarfile.BLOCKSIZE or len(rest) > PADDING or rest.strip(b"\0"):
        raise StoreError(f"{archive.name}: unreadable: it is not whole or has a bad header", _again(archive))


def _again(archive: Path) -> str:
    """The remedy for an archive that may be whole when it is fetched anew."""
    return f"rm {shlex.quote(str(archive))}, then run again"


def _placed(wheel: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """Each member and its path once unpacked. Members of ``NAME.data/purelib`` or ``platlib`` go to the top."""
    for info in wheel.infolist():
        parts = PurePosixPath(info.filename).parts
        inner = parts[2:] if len(parts) > 2 and parts[0].endswith(".data") and parts[1] in SPREAD else parts
        yield info, PurePosixPath(*inner)


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        _limit(archive, [i.file_size for i in wheel.infolist()])
        _check_layout(archive, wheel)
        placed = list(_placed(wheel))
        _once(archive, [name.as_posix() for info, name in placed if not info.is_dir()])
        for info, name in placed:
            _extract(wheel, info, target, name)
        _check_record(archive, wheel, target, {info.filename: target / name for info, name in placed})


def _check_layout(archive: Path, wheel: zipfile.ZipFile) -> None:
    """Raise StoreError unless the members fill the file up to its table: no bytes before, between or behind them.

    A reader that goes by the members and one that goes by the table would find other files in it.
    """
    with archive.open("rb") as source:
        place = 0
        for info in sorted(wheel.infolist(), key=lambda info: info.header_offset):
            source.seek(info.header_offset)
            head = source.read(LOCAL_BYTES)
            gap = info.header_offset - place
            if not head.startswith(LOCAL) or gap not in (0, *(DESCRIPTORS if place else ())):
                raise StoreError(f"{archive.name}: refused: {gap} bytes before member {info.filename!r}")
            name, extra = struct.unpack("<2H", head[-4:])
            place = info.header_offset + LOCAL_BYTES + name + extra + info.compress_size
        source.seek(-END_BYTES, io.SEEK_END)
        if wheel.start_dir - place not in (0, *DESCRIPTORS) or not source.read().startswith(END):
            raise StoreError(f"{archive.name}: refused: bytes before or behind its table, or sizes that lie")


def _check_record(archive: Path, wheel: zipfile.ZipFile, target: Path, paths: dict[str, Path]) -> None:
    """Raise StoreError if a wheel has two dist-infos, or its RECORD states another sha256 than a file has."""
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    infos = [name for name in tops if name.endswith(".dist-info")]
    if len(infos) > 1:
        raise StoreError(f"{archive.name}: refused: it is two distributions: {', '.join(sorted(infos))}")
    record = within(target, f"{infos[0]}/RECORD") if infos else target / "RECORD"
    for name, stated, *_ in csv.reader(record.read_text().splitlines()) if infos and record.is_file() else ():
        kind, _, digest = stated.partition("=")
        if kind == "sha256" and name in paths and _urlsafe(paths[name]) != digest.rstrip("="):
            raise StoreError(f"{archive.name}: refused: {name} has another digest than its RECORD states")


def _urlsafe(path: Path) -> str:
    """A file's sha256 as RECORD has it."""
    return base64.urlsafe_b64encode(bytes.fromhex(file_sha256(path))).decode().rstrip("=")


def _executable(info: zipfile.ZipInfo) -> bool:
    return bool(info.external_attr >> 16 & 0o111)


def _extract(wheel: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, name: PurePosixPath) -> None:
    if why := astray(info.filename):
        raise StoreError(f"{wheel.filename}: refused: member {info.filename!r} {why}")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise StoreError(f"{wheel.filename}: refused: member {info.filename!r} is a link or a device")
    path = within(target, name.as_posix()) if name.parts else target
    if info.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with wheel.open(info) as source, path.open("xb") as sink:
        shutil.copyfileobj(source, sink)
    path.chmod(0o755 if _executable(info) else 0o644)


def lift(inner: Path, target: Path) -> None:
    """Move the contents of ``inner`` up into ``target``."""
    moved = target / ".lifting"
    inner.rename(moved)
    for child in moved.iterdir():
        destination = target / child.name
        if destination.is_dir() and child.is_dir():
            shutil.copytree(child, destination, dirs_exist_ok=True)
        else:
            child.rename(destination)
    shutil.rmtree(moved)
