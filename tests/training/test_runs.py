"""Kept runs, read for what they executed of patches."""

import json

import pytest
from toy import write_tree

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.kept import xz
from reproducers.record import entry, schema
from reproducers.record.schema import ROOT
from reproducers.training import coverage, runs

SETUP = {
    "started": "2026-11-28T03:00:00+00:00",
    "size": {"name": "tiny"},
    "stack": "dev",
    "paths": {"loss": {"name": "linear", "reason": "asked for"}},
    "run": {"paths": {"loss": "linear"}},
    "patches": {"lock": {"packs": {"pack07": {"patch": "a" * 64}}}},
}


def hunk(state, places, at_import=False):
    lines = {"file": "core.py", "first": 1, "last": 2, "lines": [1], "compiled": []}
    return {**lines, "state": state, "places": {place: [1] for place in places}, "at_import": at_import}


HUNKS = [
    hunk("ran", ["3 dsa", "saving"]),
    hunk("ran", ["saving"]),
    hunk("compiled", []),
    hunk("loaded", ["build"]),
    hunk("loaded", ["build"], at_import=True),
    hunk("never", []),
]


@pytest.fixture
def receipts(tmp_path):
    packs = {"pack07": {"title": "a", "consumed_by": [], "hunks": HUNKS}}
    said = {"python": "3.12", "seconds_building": 1.0, "seconds_watched": [], "foreign": []}
    coverage = {"device": "cuda", "packs": packs, **said}
    files = {"run.json": json.dumps(SETUP), "coverage.json": json.dumps(coverage)}
    write_tree(tmp_path / runs.FOLDER, {f"a/{name}": text for name, text in files.items()})
    write_tree(tmp_path / runs.FOLDER, {"no_setup/coverage.json": "{}", "no_coverage/run.json": "{}"})
    return tmp_path


@pytest.mark.parametrize("packed", [False, True])
def test_what_a_run_executed(receipts, packed):
    if packed:
        for name in ("run.json", "coverage.json"):
            xz.pack(receipts / runs.FOLDER / "a" / name)
    (run,) = runs.kept(receipts)
    assert (run.name, run.device, run.stack, run.size, run.asked) == ("a", "cuda", "dev", "tiny", True)
    assert (dict(run.paths), str(run.day), run.patches["pack07"]) == ({"loss": "linear"}, "2026-11-28", "a" * 64)
    assert [found.ran for found in run.packs["pack07"]] == [True, True, True, False, True, False]
    assert [sorted(found.occasions) for found in run.packs["pack07"]] == [[], ["saving"], [], [], [], []]
    assert [found.imported for found in run.packs["pack07"]] == [False] * 4 + [True, False]
    assert [set(found.lines) for found in run.packs["pack07"]] == [{0}, {0}, set(), set(), set(), set()]


@pytest.mark.parametrize("model", [{}, {"model_type": "deepseek_v4"}])
def test_a_run_of_another_architecture_says_so(receipts, model):
    (receipts / runs.FOLDER / "a" / "run.json").write_text(json.dumps(SETUP | {"size": {"name": "tiny"} | model}))
    (run,) = runs.kept(receipts)
    assert run.other == model.get("model_type", "")


OTHER_CODE = [
    ("paths", {"loss": "linear"}),
    ("expert_parallel", 2),
    ("pipeline_parallel", 2),
    ("deterministic", True),
    ("recompute", True),
    ("overlap_grads", True),
    ("overlap_weights", True),
    ("bucket", 200_000_000),
]


@pytest.mark.parametrize(
    ("run", "asked"),
    [({}, False), ({"paths": {}, "expert_parallel": 1, "wait_limit": 60.0, "optimizer_format": "stretches"}, False)]
    + [({name: value}, True) for name, value in OTHER_CODE],
)
def test_a_run_that_was_asked_for_other_code_says_nothing_of_the_default(receipts, run, asked):
    (receipts / runs.FOLDER / "a" / "run.json").write_text(json.dumps(SETUP | {"run": run}))
    assert [found.asked for found in runs.kept(receipts)] == [asked]


@pytest.mark.parametrize("harm", ["{}", "[]", "not json", '{"device": "cuda", "packs": {"pack07": {}}}'])
def test_a_run_that_cannot_be_read_is_named(receipts, harm):
    (receipts / runs.FOLDER / "a" / "coverage.json").write_text(harm)
    with pytest.raises(PatchlaneError) as refused:
        runs.kept(receipts)
    assert "/a/coverage.json:" in refused.value.what and refused.value.remedy.startswith("git checkout HEAD -- ")


def test_the_newest_run_by_default_did_what_is_asked_of_the_next():
    """Else the next run by default would be refused, as it executes no more than that one did."""
    kept = {
        (run.device, run.stack, run.size): run
        for run in runs.kept(ROOT / "receipts")
        if not run.asked and not run.other
    }
    trained = entry.read(ROOT / "manifest.yaml").training
    for run in kept.values():
        record = coverage.read(ROOT / "receipts" / runs.FOLDER / run.name)
        asked = {
            pack
            for pack, patches in trained.items()
            for patch, reaches in patches.items()
            if f"{run.device} {run.stack}" in {word for reach in reaches for word in reach.default}
            and run.patches.get(pack) == file_sha256(schema.load_named([pack])[0].folder / patch)
        }
        assert {pack for pack in asked if not record.packs[pack].executed} == set(), run.name
