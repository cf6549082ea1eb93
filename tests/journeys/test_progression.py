"""ci/progression: new releases are tried once, and changes of state are proposed and never made."""

import os
import shutil
import subprocess
import sys

from reproducers.record.schema import ROOT, load_pack


def test_new_releases_are_tried_once_and_changes_only_proposed(released):
    root = released.repository(load_pack(released.folder))
    shutil.copytree(ROOT / "ci", root / "ci")
    before = {path: path.read_bytes() for path in (root / "packs").rglob("*") if path.is_file()}

    def receipts():
        return [*(released.root / "out").glob("receipts/07/*.json")]

    def progression(*args):
        more = {**os.environ, "PYTHON": sys.executable, "BUNDLE": "", "NEWEST": "2"}
        command = [root / "ci" / "progression", "--out", "out", *args]
        done = subprocess.run(command, cwd=released.root, env=more, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    code, said, errors = progression("7")
    assert code == 0, errors
    proposals = (released.root / "out" / "proposals.txt").read_text()
    assert proposals == "proposed: pack07: retire it from 1.4 on: the patch is already in 1.10\n"
    assert said.endswith(proposals) and len(receipts()) == 2
    assert progression()[0] == 0 and len(receipts()) == 2
    assert progression("7", "8")[0] == 2
    assert {path: path.read_bytes() for path in (root / "packs").rglob("*") if path.is_file()} == before
    assert not (root / "receipts").exists() and not (root / "manifest.yaml").exists()


def test_usage(tmp_path):
    def ended(*args):
        return subprocess.run([ROOT / "ci" / "progression", *args], cwd=tmp_path, capture_output=True).returncode

    assert (ended("--help"), ended("--no-such"), ended("--out")) == (0, 2, 2)
