"""One architecture's code stays, byte for byte, and nothing else of a library moves."""

import hashlib
import json
import re
import struct

import pytest

from patchlane.base.errors import StoreError
from reproducers.upstream.built import trim_fatbin

BEFORE, AFTER = b"code before".ljust(64, b"\1"), b"data after" * 7
PTX, CUBIN = 1, 2


def entry(kind, arch, payload):
    head = struct.pack("<HHIQ12xI", kind, 0x101, 64, len(payload), arch).ljust(64, b"\0")
    return head + payload


def container(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(fatbin, section=b".nv_fatbin"):
    """A 64-bit ELF file of three sections: text, the fatbin and the names."""
    names = b"\0.text\0" + section + b"\0.shstrtab\0"
    offsets = [64, 64 + len(BEFORE), 64 + len(BEFORE) + len(fatbin)]
    body = BEFORE + fatbin + names + AFTER
    head = bytearray(b"\x7fELF\x02\x01\x01".ljust(64, b"\0"))
    struct.pack_into("<Q", head, 0x28, 64 + len(body))
    struct.pack_into("<HHH", head, 0x3A, 64, 4, 3)
    rows = [(0, 0, 0), (1, offsets[0], len(BEFORE)), (7, offsets[1], len(fatbin)), (8 + len(section), offsets[2], 1)]
    table = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, at, size).ljust(64, b"\0") for name, at, size in rows)
    return bytes(head) + body + table


HOPPER = [b"hopper one" * 9, b"hopper two" * 5]
FATBIN = container(entry(CUBIN, 80, b"ampere" * 8), entry(CUBIN, 90, HOPPER[0]), entry(PTX, 90, b"ptx" * 8))
FATBIN += bytes(8) + container(entry(CUBIN, 90, HOPPER[1]), entry(CUBIN, 100, b"blackwell" * 8))
FATBIN += container(entry(CUBIN, 80, b"ampere only" * 8))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcore.so").write_bytes(library(FATBIN))
    (tmp_path / "lib" / "libhost.so.1").write_bytes(library(b"no code here....", b".data"))
    return tmp_path


def test_only_the_wanted_cubins_stay_and_they_are_untouched(root):
    path = root / "lib" / "libcore.so"
    old = path.read_bytes()
    trim_fatbin.trim_tree(root, 90, "core")
    new = path.read_bytes()
    assert len(new) == len(old) and all(code in new for code in HOPPER)
    assert not any(gone in new for gone in (b"ampere", b"blackwell", b"ptx"))
    start = 64 + len(BEFORE)
    assert new[:start] == old[:start] and new[start + len(FATBIN) :] == old[start + len(FATBIN) :]
    left = [e for *_, entries in trim_fatbin.containers(new, *trim_fatbin.fatbin_section(new)) for e in entries]
    assert [(e.kind, e.arch) for e in left] == [(CUBIN, 90)] * 2
    record = json.loads((root / "trimmed-core.json").read_text())
    assert list(record) == ["lib/libcore.so"] and record["lib/libcore.so"]["arch"] == "sm_90"
    assert record["lib/libcore.so"]["original_sha256"] == hashlib.sha256(old).hexdigest()
    assert record["lib/libcore.so"]["trimmed_sha256"] == hashlib.sha256(new).hexdigest()
    assert record["lib/libcore.so"]["cubins_sha256"] == trim_fatbin.cubins(old, 90)


def test_trimming_is_reproducible_and_a_second_time_changes_nothing(root):
    trim_fatbin.trim_tree(root, 90, "core")
    once = (root / "lib" / "libcore.so").read_bytes()
    trim_fatbin.trim_tree(root, 90, "core")
    assert (root / "lib" / "libcore.so").read_bytes() == once


def test_an_architecture_that_is_not_there_is_an_error(root):
    with pytest.raises(StoreError, match=r"libcore\.so .*sm_75"):
        trim_fatbin.trim_tree(root, 75, "core")


def test_a_tree_without_gpu_code_is_an_error(root):
    (root / "lib" / "libcore.so").unlink()
    with pytest.raises(StoreError, match=re.escape(str(root))):
        trim_fatbin.trim_tree(root, 90, "core")


@pytest.mark.parametrize("spoil", ["entry", "container"])
def test_a_fatbin_of_another_form_is_refused_untouched(tmp_path, spoil):
    data = bytearray(library(FATBIN))
    where = 64 + len(BEFORE)
    struct.pack_into("<Q", data, where + 8 if spoil == "container" else where + 16 + 8, 1 << 40)
    path = tmp_path / "libcore.so"
    path.write_bytes(data)
    with pytest.raises(StoreError):
        trim_fatbin.trim(path, 90)
    assert path.read_bytes() == data
