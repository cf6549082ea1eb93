"""Folders that cannot be written and full disks are told before the work, with the option or variable that mends it."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tiers import sampled
from toy import SOURCE, write_tree

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from reproducers.base import cli
from reproducers.evidence import receipts, saving
from reproducers.record.schema import ROOT
from reproducers.trial import screen


@pytest.fixture
def repo(toy):
    write_tree(toy.upstream, SOURCE)
    return toy.repository(toy.pack())


@pytest.mark.parametrize("place", sampled(["/proc/x", "a/file", "a/file/below"], 3))
@pytest.mark.parametrize("option", ["--receipts", "--junitxml"])
def test_run_looks_before_it_works(toy, repo, option, place):
    write_tree(repo, {"a/file": ""})
    where = f"{place}/j.xml" if option == "--junitxml" else place
    process = toy.verb(repo, "run", "7", "--upstream", str(toy.upstream), option, where)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "fix: " + option in err, "Traceback" in err) == (2, True, False), err
    assert "pristine" not in out


@pytest.mark.parametrize("command", [["run", "pack09"], ["bundle", "pack09"]])
def test_a_store_that_cannot_be_written(tmp_path, command):
    environment = {**os.environ, "PATCHLANE_STORE": "/proc/x"}
    arguments = [*command, *(["--receipts", str(tmp_path)] if command[0] == "run" else [])]
    arguments += ["--output", str(tmp_path)] if command[0] == "bundle" else []
    done = subprocess.run(
        [sys.executable, "-m", f"reproducers.{arguments[0]}", *arguments[1:]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "PATCHLANE_STORE=DIR" in done.stderr, "fault" in done.stderr) == (2, True, False), done


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["render", "pack09", "--out"], "--out"),
        (["export", "pack09", "-o"], "-o"),
        (["bundle", "9", "--output"], "--o"),
    ],
)
def test_other_verbs_name_their_option(tmp_path, command, option):
    (tmp_path / "file").write_text("")
    verb, *rest = command
    done = subprocess.run(
        [sys.executable, "-m", f"reproducers.{verb}", *rest, str(tmp_path / "file" / "x")],
        cwd=ROOT,
        env={**os.environ, "PATCHLANE_STORE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, f"fix: {option}" in done.stderr, "fault" in done.stderr) == (2, True, False), done


def test_a_finished_runs_receipt_is_not_lost(toy, monkeypatch):
    run = toy.run(toy.pack())
    write, printed = receipts.write, []

    def full(run, root, *rest):
        if root == toy.root / "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))
        return write(run, root, *rest)

    monkeypatch.setattr(receipts, "write", full)
    monkeypatch.setenv("TMPDIR", str(toy.root))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    out = screen.console(False)
    monkeypatch.setattr(out, "print", lambda text: printed.append(text))
    recorder = saving.Recorder(toy.root / "full", "toy", [])
    recorder.write(run)
    recorder.write(run)
    assert recorder.tell(out) is False
    assert len(list(toy.root.glob("patchlane-receipts-*/07/*.json"))) == 2
    assert any(line.strip().startswith("fix:") and str(toy.root / "full") in line for line in printed)
    recorder = saving.Recorder(toy.root / "good", "toy", [])
    recorder.write(run)
    assert recorder.tell(out) is True


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, 2), (errno.EROFS, 2), (errno.EACCES, 2), (errno.ENOENT, 3)]
)
def test_what_the_host_refuses_is_no_fault_of_ours(tmp_path, monkeypatch, capsys, number, code):
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    app = typer.Typer()

    @app.command()
    def main() -> None:
        raise OSError(number, os.strerror(number), "/the/path")

    monkeypatch.setattr(sys, "argv", ["verb"])
    with pytest.raises(SystemExit) as ended:
        cli.guarded(lambda: app(standalone_mode=False))
    assert ended.value.code == code
    assert "/the/path" in capsys.readouterr().err


def test_probing_leaves_nothing(tmp_path):
    assert list(disk.usable_folder(tmp_path / "new", "x").iterdir()) == []
    disk.usable_file(tmp_path / "new/file", "x")
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(PatchlaneError):
        disk.usable_file(tmp_path / "new", "x")


ENDS = [
    ("reproducers.run", "--list"),
    ("reproducers.waves", "--json"),
    ("reproducers.receipts", "verify", "receipts/09"),
    ("reproducers.run", "--help"),
    ("reproducers", "--help"),
]


@pytest.mark.parametrize("command", ENDS, ids=" ".join)
@pytest.mark.parametrize("buffered", [True, False])
def test_where_what_is_printed_has_no_room(command, buffered):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=env if buffered else env | {"PYTHONUNBUFFERED": "1"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr.count("\n"), "  fix: " in done.stderr) == (2, 2, True), done


@pytest.mark.parametrize("closed", ["1", "2"])
@pytest.mark.parametrize("command", ENDS[:2], ids=" ".join)
def test_closed_output_changes_no_code(command, closed):
    line = f"{sys.executable} -m {' '.join(command)} {closed}>&-"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_a_file_in_a_folders_place(toy, repo):
    (repo / "build").write_text("")
    process = toy.verb(repo, "manifest", "refresh")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "/build: File exists\n  fix: " in err) == (2, True), (out, err)
