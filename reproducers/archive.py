"""Unpack wheels and sdists without trusting them: nothing outside the folder, no links out, no devices, no bombs."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from reproducers.errors import StoreError

MAX_BYTES = 3 * 2**30
MAX_MEMBERS = 100_000
MAX_RATIO = 400


def unpack(archive: Path, target: Path) -> None:
    """Unpack ``archive`` (.whl, .zip, .tar.gz) into the empty folder ``target``; nothing of it is executed.

    A single top-level folder of an sdist is stripped. Raises StoreError for an unsafe or absurd archive.
    """
    try:
        if archive.name.endswith((".whl", ".zip")):
            _unzip(archive, target)
        else:
            _untar(archive, target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise StoreError(
            f"{archive.name}: refused or unreadable: {error}", "delete it from the store and fetch again"
        ) from error


def _limit(archive: Path, sizes: list[int]) -> None:
    total, packed = sum(sizes), max(archive.stat().st_size, 1)
    if len(sizes) > MAX_MEMBERS or total > MAX_BYTES or (total > 2**26 and total / packed > MAX_RATIO):
        raise StoreError(
            f"{archive.name}: refused: {len(sizes)} members of {total} bytes from {packed} is beyond any real package"
        )


def _untar(archive: Path, target: Path) -> None:
    with tarfile.open(archive, "r:*") as tar:
        members, total = [], 0
        for member in tar:
            total += member.size
            members.append(member)
            if len(members) > MAX_MEMBERS or total > MAX_BYTES:
                break
        _limit(archive, [m.size for m in members])
        names = [m.name for m in members if not m.isdir()]
        if len(set(names)) < len(names):
            raise StoreError(f"{archive.name}: refused: a member is there twice, and which one counts is not defined")
        tar.extractall(target, members, filter="data")
    tops = list(target.iterdir())
    if len(tops) == 1 and tops[0].is_dir():
        lift(tops[0], target)


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        infos = wheel.infolist()
        _limit(archive, [i.file_size for i in infos])
        for info in infos:
            _extract(wheel, info, target)
    for data in target.glob("*.data"):
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                lift(data / kind, target)


def _extract(wheel: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    name, mode = PurePosixPath(info.filename), info.external_attr >> 16
    if name.is_absolute() or ".." in name.parts or "\\" in info.filename:
        raise StoreError(f"{wheel.filename}: refused: member {info.filename!r} leaves the folder")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise StoreError(f"{wheel.filename}: refused: member {info.filename!r} is a link or a device")
    path = target / name
    if info.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with wheel.open(info) as source, path.open("xb") as sink:
        shutil.copyfileobj(source, sink)
    path.chmod(0o755 if mode & 0o111 else 0o644)


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
