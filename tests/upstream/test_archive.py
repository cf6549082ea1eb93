"""Hostile and odd archives."""

import errno
import gzip
import hashlib
import os
import re
import shutil
import stat
import tarfile

import pytest
from archives import make_tar, make_zip

from patchlane.base.errors import StoreError
from reproducers.upstream import archive


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def unpack(tmp_path):
    """Unpack into tmp_path/out; nothing may appear beside it."""

    def run(path):
        before = {p for p in tmp_path.iterdir()}
        out = tmp_path / "out"
        out.mkdir()
        try:
            archive.unpack(path, out)
        finally:
            assert {p for p in tmp_path.iterdir()} == before | {out}
        return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}

    return run


TARS = {
    "parent path": [("a/../../evil", b"x")],
    "symlink out": [special("a/link", tarfile.SYMTYPE, "../../evil")],
    "absolute symlink": [special("a/link", tarfile.SYMTYPE, "/etc/passwd")],
    "hardlink out": [special("a/link", tarfile.LNKTYPE, "../evil")],
    "write through a link": [special("a", tarfile.SYMTYPE, ".."), ("a/evil", b"x")],
    "character device": [special("a/dev", tarfile.CHRTYPE)],
    "block device": [special("a/dev", tarfile.BLKTYPE)],
    "fifo": [special("a/fifo", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("name", TARS)
def test_hostile_tar(tmp_path, unpack, name):
    with pytest.raises(StoreError, match="refused"):
        unpack(make_tar(tmp_path / "x.tar.gz", *TARS[name]))


def hard(name, target):
    return special(name, tarfile.LNKTYPE, target)


def soft(name, target):
    return special(name, tarfile.SYMTYPE, target)


REFUSED = {
    "absolute name": [("/etc/evil", b"x"), ("b", b"y")],
    "twice, with a dot": [("d/a", b"1"), ("./d/a", b"2")],
    "twice, with two slashes": [("d/a", b"1"), ("d//a", b"2")],
    "through a folder's link": [("d/a", b"1"), soft("l", "d"), ("l/b", b"2")],
    "through a link that comes later": [("l/b", b"2"), soft("l", "d")],
    "a chain of links": [("d/a", b"1"), soft("l", "d"), soft("m", "l/a")],
    "out by a chain of links": [("d/a", b"1"), soft("d/l", "."), soft("m", "d/l/../..")],
    "hard link to a link": [("a", b"1"), soft("l", "a"), hard("h", "l")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tar_that_is_not_what_it_seems(tmp_path, unpack, name):
    with pytest.raises(StoreError):
        unpack(make_tar(tmp_path / "x.tar.gz", *REFUSED[name]))


def test_links_inside_are_kept(tmp_path, unpack):
    files = unpack(make_tar(tmp_path / "x.tar.gz", ("d/a", b"1"), soft("d/l", "a"), soft("m", "d/a"), hard("h", "d/a")))
    assert files == {"d/a": b"1", "d/l": b"1", "m": b"1", "h": b"1"}


@pytest.mark.parametrize("name", ["x/a", "a"])
def test_setuid_is_not_kept(tmp_path, unpack, name):
    info = tarfile.TarInfo(name)
    info.mode, info.size = 0o6755, 0
    unpack(make_tar(tmp_path / "x.tar.gz", info, ("b", b"")))
    assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) == 0o755


def regzip(path, change):
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))
    return path


SPOILT = {
    "cut before its second member": lambda data: data[:1024],
    "without its end": lambda data: data[:2048],
    "a bad header in the middle": lambda data: data[:1024] + b"x" + data[1025:],
    "no header in the middle": lambda data: data[:1024] + bytes(512) + data[1536:],
    "something after its end": lambda data: data + b"x",
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_tar_that_is_not_whole(tmp_path, unpack, name):
    """The stream is whole, so only the tar itself can tell."""
    path = make_tar(tmp_path / "x.tar.gz", ("a", b"1"), ("b", b"2"))
    with pytest.raises(StoreError):
        unpack(regzip(path, SPOILT[name]))


@pytest.mark.parametrize("keep", [-1, -4, -8])
def test_a_stream_without_its_checksum(tmp_path, unpack, keep):
    path = make_tar(tmp_path / "x.tar.gz", ("a", b"1"), ("b", b"2"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StoreError):
        unpack(path)


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_zeros_are_refused_from_a_few_mebibytes_on(tmp_path, unpack, make):
    with pytest.raises(StoreError, match=str(2**23)):
        unpack(make(tmp_path / ("x.tar.gz" if make is make_tar else "x.whl"), ("a", bytes(2**23))))


def test_a_full_disk_is_not_the_archives_fault(tmp_path, unpack, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError) as caught:
        unpack(make_zip(tmp_path / "x.whl", ("a", b"1")))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("names", [("a", "./a"), ("d/a", "d//a"), ("x.data/purelib/a", "a")])
def test_duplicate_member_of_a_zip_in_another_spelling(tmp_path, unpack, names):
    with pytest.raises(StoreError, match="twice"):
        unpack(make_zip(tmp_path / "x.whl", *((name, b"1") for name in names)))


def test_the_files_of_a_wheel_are_those_of_its_tree(tmp_path, unpack):
    members = [("pkg/a.py", b"a"), ("x.data/platlib/pkg/b.so", b"b"), ("x.data/scripts/c", b"c"), ("d/", b"")]
    path = make_zip(tmp_path / "x.whl", *members)
    listed = archive.wheel_files(path)
    assert {name: sha for name, _, sha in listed} == {
        name: hashlib.sha256(data).hexdigest() for name, data in unpack(path).items()
    }


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil"])
def test_hostile_zip_path(tmp_path, unpack, name):
    with pytest.raises(StoreError, match=re.escape(repr(name))):
        unpack(make_zip(tmp_path / "x.whl", (name, b"x")))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_zip_link_or_device(tmp_path, unpack, kind):
    with pytest.raises(StoreError, match="'a'"):
        unpack(make_zip(tmp_path / "x.whl", ("a", b"/etc/passwd"), mode=kind | 0o777))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_ratio_bomb(tmp_path, unpack, make):
    name = "x.tar.gz" if make is make_tar else "x.whl"
    with pytest.raises(StoreError, match=str(2**26 + 1)):
        unpack(make(tmp_path / name, ("a", bytes(2**26 + 1))))


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_total_size(tmp_path, unpack, monkeypatch, make):
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    name = "x.tar.gz" if make is make_tar else "x.whl"
    with pytest.raises(StoreError, match="120 bytes"):
        unpack(make(tmp_path / name, ("a", b"x" * 60), ("b", b"x" * 60)))


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_member_count(tmp_path, unpack, monkeypatch, make):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 3)
    name = "x.tar.gz" if make is make_tar else "x.whl"
    with pytest.raises(StoreError, match="4 members"):
        unpack(make(tmp_path / name, *((str(n), b"") for n in range(4))))


def test_zip_that_lies_about_its_size(tmp_path, unpack):
    path = make_zip(tmp_path / "x.whl", ("a", bytes(1000)))
    data = path.read_bytes().replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(data)
    with pytest.raises(StoreError, match="unreadable"):
        unpack(path)


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.6])
def test_truncated(tmp_path, unpack, make, keep):
    path = make(tmp_path / ("x.tar.gz" if make is make_tar else "x.whl"), ("a/b", bytes(range(256)) * 40))
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(StoreError, match="unreadable"):
        unpack(path)


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_flipped_bytes(tmp_path, unpack, make):
    """Damage in the compressed stream, at every place that is not the header, is a StoreError and nothing else."""
    path = make(tmp_path / ("x.tar.gz" if make is make_tar else "x.whl"), ("a/b", b"some text " * 300))
    data = bytearray(path.read_bytes())
    for place in range(40, 60):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreError):
        unpack(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_member_of_a_zip(tmp_path, unpack):
    with pytest.raises(StoreError, match="twice"):
        unpack(make_zip(tmp_path / "x.whl", ("a", b"1"), ("a", b"2")))


def test_duplicate_member_of_a_tar(tmp_path, unpack):
    with pytest.raises(StoreError, match="twice"):
        unpack(make_tar(tmp_path / "x.tar.gz", ("d/a", b"1"), ("d/a", b"2")))


def test_wheel_data_is_merged(tmp_path, unpack):
    members = [("pkg/a.py", b"a"), ("x-1.data/purelib/pkg/b.py", b"b"), ("x-1.data/platlib/other.py", b"c")]
    files = unpack(make_zip(tmp_path / "x.whl", *members))
    assert files == {"pkg/a.py": b"a", "pkg/b.py": b"b", "other.py": b"c"}


def test_sdist_top_folder_is_stripped(tmp_path, unpack):
    files = unpack(make_tar(tmp_path / "x-1.tar.gz", ("x-1/pkg/a.py", b"a"), ("x-1/x-1", b"same name")))
    assert files == {"pkg/a.py": b"a", "x-1": b"same name"}


def test_executable_bit_and_folders(tmp_path, unpack):
    unpack(make_zip(tmp_path / "x.whl", ("bin/tool", b"#!"), mode=stat.S_IFREG | 0o755))
    assert (tmp_path / "out/bin/tool").stat().st_mode & 0o777 == 0o755


def test_case_twins_are_refused(tmp_path, unpack):
    with pytest.raises(StoreError, match="twice"):
        unpack(make_tar(tmp_path / "x.tar.gz", ("d/Core.py", b"1"), ("d/core.py", b"2")))


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "d\x9b/a", "x" * 256, "/".join(["d"] * 1100)], ids=ascii)
def test_a_name_that_no_disk_or_terminal_takes(tmp_path, unpack, make, name):
    with pytest.raises(StoreError, match="refused"):
        unpack(make(tmp_path / ("x.tar.gz" if make is make_tar else "x.whl"), (name, b"1"), ("b", b"2")))


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_a_file_that_is_a_folder_too(tmp_path, unpack, make):
    with pytest.raises(StoreError, match="refused or unreadable"):
        unpack(make(tmp_path / ("x.tar.gz" if make is make_tar else "x.whl"), ("a", b"1"), ("a/b", b"2")))


INFO = ("x-1.dist-info/METADATA", b"Name: x")
SUM = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"  # of b"abc"


@pytest.mark.parametrize(
    ("more", "fine"),
    [
        ([("y-1.dist-info/METADATA", b"Name: y")], False),
        ([("x/vendor/y-1.dist-info/METADATA", b"Name: y")], True),
        ([("x-1.dist-info/RECORD", f"a.py,sha256={SUM},3\r\nx-1.dist-info/RECORD,,\r\n".encode())], True),
        ([("x-1.dist-info/RECORD", f"a.py,sha256={SUM[::-1]},3\n".encode())], False),
    ],
)
def test_a_wheel_is_the_one_distribution_that_it_says(tmp_path, unpack, more, fine):
    path = make_zip(tmp_path / "x.whl", ("a.py", b"abc"), INFO, *more)
    if fine:
        assert unpack(path)["a.py"] == b"abc"
        return
    with pytest.raises(StoreError, match="refused"):
        unpack(path)


def shorter(data, by=1):
    """The compressed size that the table states is another."""
    place = data.rindex(b"PK\1\2") + 20
    size = int.from_bytes(data[place : place + 4], "little") - by
    return data[:place] + size.to_bytes(4, "little") + data[place + 4 :]


BESIDE = {
    "before": lambda data: b"#!/bin/sh\n" + data,
    "behind": lambda data: data + b"x",
    "a comment": lambda data: data[:-2] + b"\1\0x",
    "between": lambda data: data[: data.rindex(b"PK\3\4")] + b"junk" + data[data.rindex(b"PK\3\4") :],
    "a smaller size": shorter,
    "a larger size": lambda data: shorter(data, -5),
}


@pytest.mark.parametrize("change", BESIDE)
def test_a_zip_that_another_reader_reads_otherwise(tmp_path, unpack, change):
    path = make_zip(tmp_path / "x.whl", ("a", b"1" * 50), ("b", b"2" * 50))
    path.write_bytes(BESIDE[change](path.read_bytes()))
    with pytest.raises(StoreError):
        unpack(path)


def test_headers_of_mebibytes(tmp_path, unpack):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"comment": str(os.urandom(2**21))}
        tar.addfile(info)
    with pytest.raises(StoreError, match="headers"):
        unpack(tmp_path / "x.tar.gz")


ODD = {
    "encrypted": lambda data: data[:6] + b"\1" + data[7:].replace(b"PK\1\2\x14\x03\x14\0\0", b"PK\1\2\x14\x03\x14\0\1"),
    "an unknown method": lambda data: data.replace(b"\x08\x00", b"\x63\x00"),
    "no table": lambda data: data.replace(b"PK\1\2", b"PK\1\3"),
    "nothing": lambda data: b"",
}


@pytest.mark.parametrize("change", ODD)
def test_every_refusal_of_a_zip_is_a_store_error(tmp_path, unpack, change):
    path = make_zip(tmp_path / "x.whl", ("a", b"1" * 50))
    path.write_bytes(ODD[change](path.read_bytes()))
    with pytest.raises(StoreError):
        unpack(path)


def test_so_many_levels_that_a_library_gives_up(tmp_path, unpack):
    deep = "/".join(["d"] * 1000)
    with pytest.raises(StoreError):
        unpack(make_tar(tmp_path / "x.tar.gz", (f"{deep}/a", b"1"), (f"{deep}/{deep}/a", b"2")))
