"""The archive of a folder: its members are read like files, and whatever is not as it was written is named."""

import errno
import hashlib
import io
import json
import os
import tarfile

import pytest

from patchlane.base.errors import PatchlaneError, StoreError
from reproducers.kept import archive, xz
from reproducers.kept.archive import INDEX, TAR, Member

FILES = {f"{name}{end}": f"{name} {end}\n".encode() * 40 for name in ("a", "b", "c") for end in (".json", ".log")}


def digest(data):
    return hashlib.sha256(data).hexdigest()


def member(name, files=FILES):
    log = digest(files[f"{name}.log"])
    return Member(name=f"{name}.json", sha256=digest(files[f"{name}.json"]), log_sha256=log, verdict="x", previous=None)


def add(folder, *names, files=FILES):
    new = [
        (member(name, files), {f"{name}{end}": files[f"{name}{end}"] for end in (".json", ".log")}) for name in names
    ]
    archive.add(folder, new)


@pytest.fixture
def folder(tmp_path):
    """Two archived records, a and b, and an open one, c."""
    folder = tmp_path / "07"
    folder.mkdir()
    add(folder, "a", "b")
    for name in ("c.json", "c.log"):
        (folder / name).write_bytes(FILES[name])
    return folder


def test_members_are_read_like_files(folder):
    assert {path.name for path in folder.iterdir()} == {INDEX, TAR, "c.json", "c.log"}
    assert archive.listed(folder) == [folder / name for name in ("a.json", "b.json", "c.json")]
    for name, content in FILES.items():
        path = folder / name
        assert archive.exists(path) and archive.data(path) == content and archive.sha256(path) == digest(content)
    assert not archive.exists(folder / "d.json") and archive.faults(folder) == []
    with pytest.raises(FileNotFoundError):
        archive.data(folder / "d.json")


def test_a_folder_without_an_archive_has_no_members(tmp_path):
    assert (archive.members(tmp_path), archive.heads(tmp_path), archive.faults(tmp_path)) == ([], [], [])


def test_the_same_members_give_the_same_bytes_on_any_day(folder, tmp_path):
    os.utime(folder / "c.json", (1, 1))
    other = tmp_path / "other"
    other.mkdir()
    add(other, "a")
    add(other, "b")
    assert [(other / name).read_bytes() for name in (INDEX, TAR)] == [
        (folder / name).read_bytes() for name in (INDEX, TAR)
    ]
    assert len((folder / INDEX).read_text().splitlines()) == 2 + len(archive.members(folder))  # a line a member
    with tarfile.open(fileobj=io.BytesIO(xz.unpacked(folder / TAR, (folder / TAR).read_bytes()))) as tar:
        assert {(entry.mtime, entry.uid, entry.uname) for entry in tar} == {(0, 0, "")}


def test_a_digest_over_the_first_members_stays_one_of_the_archives(folder):
    before = archive.heads(folder)
    add(folder, "b", "c")  # b is there already
    assert [one.name for one in archive.members(folder)] == ["a.json", "b.json", "c.json"]
    assert len(before) == 2 and archive.heads(folder)[:2] == before and archive.held(folder / "c.log") == FILES["c.log"]


def repacked(folder, change):
    """The tar with its entries changed, as a forger packs it."""
    found, made = archive._unpacked(folder), io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry, content in change([(tarfile.TarInfo(name), content) for name, content in found]):
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    (folder / TAR).write_bytes(xz.packed(made.getvalue()))


def renamed(name, **fields):
    def change(entries):
        entries[1][0].name = name
        for field, value in fields.items():
            setattr(entries[1][0], field, value)
        return entries

    return lambda folder: repacked(folder, change)


def indexed(change):
    def harm(folder):
        rows = json.loads((folder / INDEX).read_text())
        change(rows)
        lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
        (folder / INDEX).write_text(f"[\n{lines}\n]\n")

    return harm


def flipped(folder):
    data = bytearray((folder / TAR).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / TAR).write_bytes(data)


def mended_by_git(folder):
    return f"git checkout HEAD -- {folder / INDEX} {folder / TAR}"


HARMS = {
    "a byte": flipped,
    "cut off": lambda folder: (folder / TAR).write_bytes((folder / TAR).read_bytes()[:-10]),
    "empty": lambda folder: (folder / TAR).write_bytes(b""),
    "no xz": lambda folder: (folder / TAR).write_bytes(b"text"),
    "no tar": lambda folder: (folder / TAR).write_bytes(xz.packed(b"text" * 500)),
    "tar gone": lambda folder: (folder / TAR).unlink(),
    "index gone": lambda folder: (folder / INDEX).unlink(),
    "a member gone": lambda folder: repacked(folder, lambda entries: entries[2:]),
    "the last gone": lambda folder: repacked(folder, lambda entries: entries[:-1]),
    "a member's byte": lambda folder: repacked(folder, lambda e: [(e[0][0], e[0][1][:-1] + b"x"), *e[1:]]),
    "another order": lambda folder: repacked(folder, lambda entries: [*entries[2:], *entries[:2]]),
    "one more": lambda folder: repacked(folder, lambda e: [*e, (tarfile.TarInfo("d.json"), b"{}")]),
    "a time": renamed("a.log", mtime=7),
    "a way out": renamed("../../x"),
    "an absolute name": renamed("/tmp/x"),
    "a link": renamed("a.log", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a device": renamed("a.log", type=tarfile.CHRTYPE),
    "no JSON": lambda folder: (folder / INDEX).write_text("[\n"),
    "no list": lambda folder: (folder / INDEX).write_text("{}\n"),
    "not ours": lambda folder: (folder / INDEX).write_text(json.dumps(json.loads((folder / INDEX).read_text()))),
    "no line": indexed(lambda rows: rows.pop()),
    "none": indexed(lambda rows: rows.clear()),
    "another digest": indexed(lambda rows: rows[0].update(sha256="0" * 64)),
    "another name": indexed(lambda rows: rows[0].update(name="../../x.json")),
    "a name twice": indexed(lambda rows: rows.append(rows[0])),
    "a field more": indexed(lambda rows: rows[0].update(more=1)),
    "no text": lambda folder: (folder / INDEX).write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_harm_is_named_with_the_command_that_mends_it(folder, harm):
    HARMS[harm](folder)
    (row,) = archive.faults(folder)
    assert row and archive.remedy(folder) == mended_by_git(folder)
    before = {path.name for path in folder.parent.rglob("*")}
    with pytest.raises(StoreError):  # nothing is added to a damaged one, and nothing is unpacked outside it
        add(folder, "c")
    assert {path.name for path in folder.parent.rglob("*")} == before


@pytest.mark.parametrize("harm", ["a member's byte", "a byte", "tar gone"])
def test_a_reader_gets_nothing_of_a_damaged_archive(folder, harm):
    HARMS[harm](folder)
    with pytest.raises(StoreError) as refused:
        archive.data(folder / "b.json")
    assert refused.value.remedy.startswith("git checkout HEAD -- ")


def test_an_archive_that_unpacks_to_too_much_is_refused(folder, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST", 1000)
    (row,) = archive.faults(folder)
    assert "too large" in row


@pytest.mark.parametrize("first", [True, False])
def test_a_kill_between_tar_and_index_loses_nothing(folder, monkeypatch, first):
    if first:
        for name in (INDEX, TAR):
            (folder / name).unlink()
    before = [one.name for one in archive.members(folder)]
    real, written = archive.write_atomic, []

    def killed(path, data):
        if written:
            raise KeyboardInterrupt
        written.append(path.name)
        real(path, data)

    monkeypatch.setattr(archive, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        add(folder, "c")
    monkeypatch.setattr(archive, "write_atomic", real)
    assert written == [TAR] and len(archive.faults(folder)) == 1 and archive.remedy(folder) == archive.AGAIN
    if not first:
        assert archive.data(folder / "a.json") == FILES["a.json"]  # what was there is read all the while
    archive.mend(folder)
    assert archive.faults(folder) == [] and [one.name for one in archive.members(folder)] == before
    add(folder, "c")
    assert archive.held(folder / "c.json") == FILES["c.json"]


def test_what_lies_nowhere_else_is_not_forgotten(folder):
    HARMS["index gone"](folder)
    archive.mend(folder)
    assert (folder / TAR).is_file() and archive.remedy(folder) == mended_by_git(folder)


def test_a_full_disk_leaves_the_archive_as_it_was(folder, monkeypatch):
    before = (folder / TAR).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archive, "write_atomic", full)
    with pytest.raises(PatchlaneError) as refused:
        add(folder, "c")
    assert os.strerror(errno.ENOSPC) in refused.value.what and refused.value.remedy.endswith(archive.AGAIN)
    assert (folder / TAR).read_bytes() == before and archive.faults(folder) == []
