"""What of the packs runs when nam56r_tiny trains on the CPU, by layer. One process a run: Megatron keeps globals."""

import json
import os
import subprocess
import sys

import pytest

from model.families.sizes import SIZES
from model.patched import overlay
from reproducers.record import entry
from reproducers.record.schema import ROOT
from reproducers.training.coverage import read
from reproducers.upstream.store import Store

pytestmark = [pytest.mark.upstream, pytest.mark.train]
LOSS = "megatron/core/transformer/experimental_attention_variant/dsa_indexer_loss.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run directory of four steps, two of them watched."""
    try:
        overlay.build(Store(), overlay.chosen("all"), "cpu")
    except OSError as reason:
        pytest.skip(f"upstream's releases are neither in the store nor to be fetched: {reason}")
    folder = tmp_path_factory.mktemp("run")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests/kit/covered_run.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_the_indexers_loss_runs_in_the_layer_that_chooses_keys(run):
    record = read(run)
    loss = [hunk for hunk in record.packs["pack12"].hunks if hunk.file == LOSS and hunk.state == "ran"]
    sources = sorted({layer.indices_from for layer in SIZES["nam56r_tiny"].layers if layer.kind == "dsa"})
    assert {place for hunk in loss for place in hunk.places} == {f"{number} dsa" for number in sources}
    whole = {place for hunk in record.packs["pack12"].hunks if hunk.executed for place in hunk.places}
    assert "5 dsa backward" in whole


def test_the_packs_that_the_manifest_says_run_by_default_on_the_cpu_do(run):
    record, known = read(run), entry.read(ROOT / "manifest.yaml").training
    ran = {name for name, pack in record.packs.items() if pack.executed}
    wanted = {
        name
        for name, patches in known.items()
        for reach in patches.get("fix.patch", [])
        if "cpu released" in reach.default
    }
    other = {"pack16", "pack45"}  # patch the distributed optimizer and its clipping, which this run does not make
    assert "pack33" in wanted and wanted - other <= ran
    assert {name for name in record.packs if record.packs[name].wanted_on("cpu")} == wanted
    assert set(record.missing()) <= other
    assert record.foreign == []


def test_nothing_of_it_is_left(run):
    after = json.loads((run / "after.json").read_text())
    assert after == {"tracing": [True, True, False, False], "watched": True, "hooks": 0}


def test_what_it_costs_is_recorded(run):
    assert len(read(run).seconds_watched) == 2 and min(read(run).seconds_watched) > 0


def test_the_run_is_on_the_locked_patches(run):
    record = json.loads((run / "patches.json").read_text())
    assert set(record["lock"]["packs"]) == set(read(run).packs)
