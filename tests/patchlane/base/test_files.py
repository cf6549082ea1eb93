"""Files and folders that appear whole or not at all."""

import os
import subprocess
import sys

import pytest

from patchlane.base.files import json_sha256, replacing, scratch_folder, swap, temporary, write_atomic
from reproducers.record.schema import ROOT


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    write_atomic(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "fsync", lambda handle: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomic(tmp_path / "f", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("f", b"old")]


@pytest.mark.parametrize("mark", ["", "data-"])
def test_a_scratch_folder_goes_and_takes_along_what_dead_processes_left(tmp_path, mark):
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, alive, other = (tmp_path / name for name in (f".tmp-{gone.pid}-{mark}x", f".tmp-{os.getpid()}-{mark}x", "x"))
    for folder in (dead, alive, other):
        folder.mkdir()
    with scratch_folder(tmp_path, mark) as scratch:
        assert scratch.is_dir() and scratch.parent == tmp_path
    assert set(tmp_path.iterdir()) == {alive, other}


def test_a_marked_scratch_folder_leaves_others_alone(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / f".tmp-{gone.pid}-mine").mkdir()
    with scratch_folder(tmp_path, "data-"):
        pass
    assert (tmp_path / f".tmp-{gone.pid}-mine").is_dir()


def test_what_is_replaced_keeps_its_suffixes_and_becomes_readable(tmp_path):
    with replacing(tmp_path / "new" / "trace.json.gz") as scratch:
        assert scratch.name.endswith(".json.gz")
        scratch.write_bytes(b"x")
    assert (tmp_path / "new" / "trace.json.gz").stat().st_mode & 0o777 == 0o644
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_what_is_written_follows_the_umask(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "made", b"x")
        assert (tmp_path / "made").stat().st_mode & 0o777 == 0o666 & ~mask
        assert os.umask(mask) == mask
    finally:
        os.umask(before)


def test_a_json_values_digest_is_of_its_content():
    assert json_sha256({"a": 1, "b": [2]}) == json_sha256({"b": [2], "a": 1}) != json_sha256({"a": 1, "b": [3]})


def test_a_swap_that_fails_puts_the_old_folder_back(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept").write_text("x")
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "absent", tmp_path / "out", tmp_path / "old")
    assert (tmp_path / "out/kept").read_text() == "x" and not (tmp_path / "old").exists()


def test_what_a_killed_process_left_among_temporary_files_goes(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os, signal; from patchlane.base.files import temporary\nwith temporary(): os.kill(os.getpid(), 9)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT).returncode == -9
    (left,) = tmp_path.iterdir()
    with temporary() as scratch:
        assert list(tmp_path.iterdir()) == [scratch] != [left]
    assert list(tmp_path.iterdir()) == []
