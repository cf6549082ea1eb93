"""``python -m model.align``: one run, and what it refuses."""

import json
import subprocess
import sys

import pytest
import v4_hf
from typer.testing import CliRunner

from model import align as verb
from model.patched import overlay
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from reproducers.record.schema import ROOT


def align(*args):
    return subprocess.run(
        [sys.executable, "-m", "model.align", *args], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.upstream
@pytest.mark.train
def test_v4_tiny_is_transformers(monkeypatch):
    v4_hf.needed()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = align("v4_tiny", "--draws", "1", "--seed", "6", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["holds"] and said["first"] is None and min(said["complete"]) == 1
    assert {row["verdict"] for row in said["rows"]} == {"holds"}
    assert {row["against"] for row in said["rows"]} == {"transformers 5.24.0", "formulas, fp64"}
    assert {row["layer"] for row in said["rows"]} == {"", "1", "2", "3", "4", "head", "MTP", "losses", "ends"}


@pytest.mark.upstream
@pytest.mark.train
def test_nam56r_tiny_is_its_formulas(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = align("nam56r_tiny", "--draws", "1", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["holds"] and said["against"] == "formulas" and said["complete"] == [1, 1]
    layers = ["entrance", *map(str, range(1, 13)), "head", "MTP-1", "losses"]
    assert list(dict.fromkeys(row["layer"] for row in said["rows"])) == layers


@pytest.mark.parametrize("args", [("nam56r",), ("v4_tiny", "--against", "vllm"), ("v4_tiny", "--tokens", "9"), ("v5",)])
def test_what_it_refuses_is_said_without_upstreams_code(args, monkeypatch):
    monkeypatch.setattr(overlay, "build", lambda *_: pytest.fail("upstream's code was asked for"))
    refusal = CliRunner().invoke(verb.app, args).exception
    assert isinstance(refusal, PatchlaneError) and refusal.exit_code == Exit.USAGE and refusal.remedy
