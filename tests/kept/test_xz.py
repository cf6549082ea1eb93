"""Files that xz packed: read like open ones, and whatever is not one whole stream is refused."""

import errno
import os

import pytest

from patchlane.base.errors import PatchlaneError, StoreError
from reproducers.kept import xz

TEXT = b'{"step": 1}\n' * 500


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(TEXT)
    return path


def test_a_packed_file_is_read_like_an_open_one(path):
    assert xz.data(path) == TEXT and xz.place(path) == path
    xz.pack(path)
    (packed,) = path.parent.iterdir()
    assert packed == xz.place(path) == path.with_name("metrics.jsonl.xz") and packed.stat().st_size < len(TEXT) / 10
    assert xz.data(path) == TEXT and list(xz.opened(path)) == [b'{"step": 1}\n'] * 500
    assert packed.read_bytes() == xz.packed(TEXT)  # the same content gives the same bytes


def test_what_lies_open_packed_or_both_is_found_once_by_its_open_name(path):
    folder = path.parent
    for name in ("run.json", "run.from_6.json.xz", "run.from_50.json", "run.from_50.json.xz", "run.png", "run.xz"):
        (folder / name).touch()
    names = [found.name for found in xz.found(folder, "run*.json")]
    assert names == ["run.from_50.json", "run.from_6.json", "run.json"]
    xz.pack(path)
    assert xz.found(folder.parent, f"{folder.name}/metrics.jsonl") == [path]


def test_what_is_there_neither_open_nor_packed_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        xz.data(tmp_path / "none")


@pytest.mark.parametrize("harm", ["cut off", "a byte", "more", "another form", "too large"])
def test_what_is_not_one_whole_stream_is_refused(path, monkeypatch, harm):
    xz.pack(path)
    packed = xz.place(path)
    data = bytearray(packed.read_bytes())
    if harm == "a byte":
        data[len(data) // 2] ^= 1
    elif harm == "too large":
        monkeypatch.setattr(xz, "LARGEST", 100)
        monkeypatch.setattr(xz.unpacked, "__defaults__", (100,))
    made = {"cut off": data[:-8], "more": data + b"x", "another form": b"text"}
    packed.write_bytes(made.get(harm, data))
    with pytest.raises(StoreError) as refused:
        xz.data(path)
    assert refused.value.remedy == f"git checkout HEAD -- {packed}"


def test_a_full_disk_loses_nothing(path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(xz, "write_atomic", full)
    with pytest.raises(PatchlaneError, match=os.strerror(errno.ENOSPC)):
        xz.pack(path)
    assert path.read_bytes() == TEXT


def test_a_kill_before_the_open_file_goes_is_mended_by_the_next(path, monkeypatch):
    xz.place(path).with_name("metrics.jsonl.xz").write_bytes(xz.packed(TEXT[:12]))  # of another day, say
    xz.pack(path)
    assert xz.data(path) == TEXT and not path.exists()
