"""Files that are kept open or packed by xz: ``NAME``, or ``NAME.xz`` beside which no ``NAME`` lies."""

from __future__ import annotations

import io
import lzma
from pathlib import Path

from patchlane.base import disk
from patchlane.base.errors import StoreError, from_git
from patchlane.base.files import LARGEST, bytes_of, write_atomic

SUFFIX = ".xz"
PRESET = 9  # of liblzma; with it the same content gives the same bytes
MEMORY = 2**28  # bytes that unpacking may take; the preset's takes a quarter


def place(path: Path) -> Path:
    """Where the content of ``path`` lies: itself, or the packed file where only that is there."""
    packed = path.with_name(path.name + SUFFIX)
    return packed if not path.exists() and packed.is_file() else path


def found(folder: Path, pattern: str) -> list[Path]:
    """The paths below ``folder`` of this glob pattern, by name, whose content lies there, open or packed."""
    lying = (*folder.glob(pattern), *folder.glob(pattern + SUFFIX))
    return sorted({path.with_name(path.name.removesuffix(SUFFIX)) for path in lying})


def opened(path: Path) -> io.BytesIO | io.BufferedReader:
    """The content of ``path``, open or packed. OSError where there is neither, StoreError where it is not whole."""
    at = place(path)
    return io.BytesIO(unpacked(at, bytes_of(at))) if at != path else path.open("rb")


def data(path: Path) -> bytes:
    """The bytes of ``path``, open or packed. Raises as ``opened`` does."""
    with opened(path) as source:
        return source.read()


def packed(content: bytes) -> bytes:
    return lzma.compress(content, format=lzma.FORMAT_XZ, preset=PRESET)


def unpacked(path: Path, content: bytes, largest: int = LARGEST) -> bytes:
    """What ``content``, the bytes of ``path``, unpacks to: one stream of xz. StoreError for any other, or a larger."""
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, MEMORY)
    try:
        made = reader.decompress(content, largest + 1)
    except lzma.LZMAError as error:
        raise StoreError(f"{path}: it does not unpack: {error}", from_git(path)) from error
    if len(made) > largest or not reader.eof or reader.unused_data:
        why = "it is too large" if len(made) > largest else "more follows it" if reader.eof else "its end is missing"
        raise StoreError(f"{path}: it does not unpack: {why}", from_git(path))
    return made


def pack(path: Path) -> None:
    """Put ``path`` beneath xz: it goes once the packed file is there and gives the same bytes.

    Raises PatchlaneError where the host has no room.
    """
    content = bytes_of(path)
    beside = path.with_name(path.name + SUFFIX)
    with disk.writing(path.parent, disk.FULL):
        write_atomic(beside, packed(content))
    if unpacked(beside, bytes_of(beside)) != content:
        raise StoreError(f"{beside}: it is not what was written", f"rm {beside}, and try another disk")
    path.unlink()
