"""Keep one GPU architecture's code in a shared library: a wheel for seven architectures need not travel whole.

The section ``.nv_fatbin`` holds containers (magic 0xBA55ED50). Each has entries, a cubin or PTX for one architecture.
In every container the entries to keep move to the front, the container's size shrinks to them, and zeros fill the rest.
No file offset changes, so the rest of the library stays as it was, and a compressed bundle spends nothing on the zeros.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from patchlane.base.errors import StoreError
from patchlane.base.files import file_sha256

CONTAINER, CUBIN = 0xBA55ED50, 2


class FatbinEntry(NamedTuple):
    """One cubin or PTX: its offset and size in the file in bytes, header included, and its architecture."""

    start: int
    size: int
    kind: int
    arch: int


def fatbin_section(data: mmap.mmap | bytes) -> tuple[int, int]:
    """(offset, size) of ``.nv_fatbin`` in bytes in a 64-bit little-endian ELF file, (0, 0) if it has none."""
    if bytes(data[:6]) != b"\x7fELF\x02\x01":
        return 0, 0
    table, width, count, names = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, table + index * width) for index in range(count)]
    text = heads[names][4]
    for name, _, _, _, offset, size in heads:
        if bytes(data[text + name : text + name + 11]) == b".nv_fatbin\0":
            return offset, size
    return 0, 0


def containers(data: mmap.mmap | bytes, offset: int, size: int) -> Iterator[tuple[int, int, int, list[FatbinEntry]]]:
    """(start, header size, body size, entries) of each container. Raises StoreError if one has another form."""
    place, end = offset, offset + size
    while place + 16 <= end:
        if struct.unpack_from("<I", data, place)[0] != CONTAINER:
            place += 8
            continue
        head, body = struct.unpack_from("<HQ", data, place + 6)
        inner, last, entries = place + head, place + head + body, list[FatbinEntry]()
        if last > end:
            raise StoreError(f"a fatbin at {place:#x} reaches over the end of its section")
        while inner < last:
            kind, _, start, length = struct.unpack_from("<HHIQ", data, inner)
            if start < 32 or inner + start + length > last:
                raise StoreError(f"a fatbin entry at {inner:#x} is not as this module knows it")
            entries.append(FatbinEntry(inner, start + length, kind, struct.unpack_from("<I", data, inner + 28)[0]))
            inner += start + length
        yield place, head, body, entries
        place = last


def cubins(data: mmap.mmap | bytes, arch: int) -> list[str]:
    """sha256 of every cubin for ``arch``, in file order."""
    every = [e for _, _, _, entries in containers(data, *fatbin_section(data)) for e in entries]
    kept = [e for e in every if e.kind == CUBIN and e.arch == arch]
    return [hashlib.sha256(data[e.start : e.start + e.size]).hexdigest() for e in kept]


def trim(path: Path, arch: int) -> dict[str, object] | None:
    """Keep only the cubins for ``arch`` (90 is sm_90 and sm_90a) in the file.

    Returns the record of the change, None if the file has no GPU code. Raises StoreError if no cubin is for ``arch``
    or a kept cubin has changed.
    """
    if path.stat().st_size < 64:
        return None
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        offset, size = fatbin_section(data)
        if not size:
            return None
        original, before = file_sha256(path), cubins(data, arch)
        if not before:
            raise StoreError(f"{path.name} has no cubin for sm_{arch}")
        for place, head, body, entries in list(containers(data, offset, size)):
            kept = b"".join(data[e.start : e.start + e.size] for e in entries if e.kind == CUBIN and e.arch == arch)
            data[place + head : place + head + body] = kept + bytes(body - len(kept))
            struct.pack_into("<Q", data, place + 8, len(kept))
        data.flush()
        if cubins(data, arch) != before:
            raise StoreError(f"{path.name}: a kept cubin is not what it was")
    trimmed = {"original_sha256": original, "trimmed_sha256": file_sha256(path)}
    return {"arch": f"sm_{arch}", **trimmed, "cubins_sha256": before}


def trim_tree(root: Path, arch: int, name: str) -> None:
    """Trim every shared library under ``root`` and record it in ``trimmed-NAME.json``, part of the tree's digest."""
    trimmed = {path.relative_to(root).as_posix(): trim(path, arch) for path in sorted(root.rglob("*.so*"))}
    record = {library: change for library, change in trimmed.items() if change is not None}
    if not record:
        raise StoreError(f"nothing under {root} has GPU code to trim")
    (root / f"trimmed-{name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
