"""The page of benchmarks: a row a kept run, each cell from the run's own files."""

from __future__ import annotations

import json
import re

import pytest
import recorded

from model.records.records import Event, Phases, to_line
from model.reports import benchmarks
from model.reports import kept as receipt
from patchlane.base.errors import PatchlaneError, StoreError
from reproducers.kept import xz
from reproducers.record.schema import ROOT

LINKED = re.compile(r"\[(\d{1,3}(?:,\d{3})+)\]\(\.\./receipts/train/(\w+)\)")
HALF_A_SECOND = Phases(data=0.1, forward_backward=0.3, optimizer=0.06, other=0.04)


def test_speeds_that_pages_link_to_a_run_are_the_runs():
    pages = {path: LINKED.findall(path.read_text()) for path in (ROOT / "docs").glob("*.md")}
    said = {(page.name, name, speed) for page, links in pages.items() for speed, name in links}
    assert len(said) > 5
    speeds = {name: f"{benchmarks.read(receipt.KEPT / name).report.tokens_per_s_per_gpu:,.0f}" for _, name, _ in said}
    assert [link for link in sorted(said) if link[2] != speeds[link[1]]] == []


def kept(tmp_path, name, ranks=4, resumed=False, **setups):
    """Keep a run of 60 steps of 4,000 tokens in 0.5 s, with each of ``setups`` as a file NAME.json; the kept folder."""
    records = []
    for number in range(1, 61):
        if resumed and number == 31:
            records.append(Event(step=30, name="resumed"))
        speed = {"tokens": 4000 * number, "tokens_per_s_per_gpu": 8000 / ranks, "seconds": HALF_A_SECOND}
        records.append(recorded.step(number, tflops_megatron=578.0, peaks_gib=[1.0, 2.0], peak_gib=2.0, **speed))
    records.append(recorded.held_out(60, 2.5))
    folder = tmp_path / name
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(b"".join(map(to_line, records)))
    for file, setup in setups.items():
        (folder / f"{file.replace('__', '.')}.json").write_text(json.dumps(setup))
    return receipt.keep(folder, name, tmp_path / "train")


def setup(size="nam56r_wide", changed=False, **layout):
    run = {"expert_parallel": 1, "pipeline_parallel": 1, "cuda_graphs": False, "paths": {}} | layout
    recipe = {"micro_batch": 2, "accumulate": 3}
    return {"size": {"name": size}, "project": {"sha": "0" * 40, "changed": changed}, "recipe": recipe, "run": run}


def row(folder):
    """{heading: cell} of the one run under a folder of kept runs, in the page's last table."""
    lines = [line for line in benchmarks.page(folder).splitlines() if line.startswith("| ")][-2:]
    heads, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return dict(zip(heads, cells, strict=True))


def test_a_run_is_a_row(tmp_path):
    layout = {"expert_parallel": 4, "pipeline_parallel": 2, "cuda_graphs": True}
    folder = kept(tmp_path, "a", run=setup(changed=True, **layout))
    assert row(folder.parent) == {
        "run": "`a` †",
        "date": "2001-09-09",
        "GPUs": "4 CPU",
        "size": "`nam56r_wide`",
        "layout and paths": "EP 4, PP 2, 2 rows × 3, `cuda-graphs`",
        "tokens a step": "4,000",
        "steps, timed": "60, 50",
        "tokens/s a GPU": "2,000",
        "TFLOP/s, formula": "578",
        "TFLOP/s, built": "0",
        "of the record": "2.000",
        "peak GiB by rank": "1.0, 2.0",
        "held-out loss": "2.500",
    }


@pytest.mark.parametrize("other", [{"size": "nam56r", "expert_parallel": 4}, {"expert_parallel": 2}])
def test_only_runs_like_the_record_are_compared_with_it(tmp_path, other):
    assert row(kept(tmp_path, "a", run=setup(**other)).parent)["of the record"] == benchmarks.NONE


def test_a_row_says_how_many_layers_keep_their_states(tmp_path):
    cells = row(kept(tmp_path, "a", run=setup(kept_states=8)).parent)
    assert any("`states of 8 layers kept`" in cell for cell in cells.values())


def test_a_run_without_run_json_says_what_its_records_do(tmp_path):
    cells = row(kept(tmp_path, "a", ranks=2).parent)
    assert (cells["GPUs"], cells["tokens/s a GPU"]) == ("2 CPU", "4,000")
    assert {cells[name] for name in ("size", "layout and paths")} == {benchmarks.NONE}


def test_the_layout_of_a_resumed_run_is_that_of_its_last_start(tmp_path):
    starts = {"run": setup(), "run__from_6": setup(), "run__from_30": setup(pipeline_parallel=2)}
    folder = kept(tmp_path, "a", resumed=True, **starts)
    assert row(folder.parent)["layout and paths"] == "PP 2, 2 rows × 3"
    for name in ("run.json", "run.from_6.json"):  # a packed name is longer than an open one of a later start
        xz.pack(folder / name)
        assert row(folder.parent)["layout and paths"] == "PP 2, 2 rows × 3"
    xz.pack(folder / "run.from_30.json")
    assert row(folder.parent)["layout and paths"] == "PP 2, 2 rows × 3"


def test_without_the_record_of_its_last_start_a_resumed_run_shows_no_layout(tmp_path):
    cells = row(kept(tmp_path, "a", resumed=True, run=setup(expert_parallel=4)).parent)
    assert (cells["layout and paths"], cells["of the record"]) == ("resumed", benchmarks.NONE)


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ({}, benchmarks.DEFAULTS),
        ({"paths": {"moe": "grouped_mm"}}, benchmarks.ASKED),
        ({"paths": {"moe": "grouped_mm", "mtp_proj": "fp8"}}, benchmarks.PRECISION),
        ({"size": "nam56r_tiny"}, benchmarks.OTHERS),
    ],
)
def test_a_run_stands_under_its_question(tmp_path, made, asked):
    folder = kept(tmp_path, "a", ranks=1, run=setup(**made))
    assert benchmarks.question(benchmarks.read(folder)) is asked
    assert f"\n## {asked.title}\n" in benchmarks.page(folder.parent)


def test_a_long_run_of_one_gpu_is_one_among_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "LONG", 60)
    folder = kept(tmp_path, "a", ranks=1, run=setup(paths={"mtp_proj": "fp8"}))
    assert benchmarks.question(benchmarks.read(folder)) is benchmarks.SEEDS
    assert row(folder.parent)["steps, timed"] == "60, 50"


def test_a_layout_shows_its_fastest_run_without_fp8(tmp_path):
    for name, ranks, paths in (("slow", 4, {}), ("fast", 2, {}), ("fp8", 2, {"mtp_proj": "fp8"})):
        folder = kept(tmp_path, name, ranks=ranks, run=setup(paths=paths))
    first = benchmarks.page(folder.parent).partition("\n## How")[0].splitlines()
    assert [line.split(" | ")[1:5] for line in first if line.startswith("| `")] == [
        ["2 CPU", "2 rows × 3", "4,000", "`fast`"],
        ["4 CPU", "2 rows × 3", "2,000", "`slow`"],
    ]


def test_a_damaged_run_json_is_an_error_with_its_remedy(tmp_path):
    folder = kept(tmp_path, "a", run=setup())
    (folder / "run.json").write_text("{")
    with pytest.raises(PatchlaneError) as refused:
        benchmarks.page(folder.parent)
    assert refused.value.remedy == "python -m model.receipt check"


def test_a_packed_run_json_that_is_cut_off_is_an_error_with_its_remedy(tmp_path):
    packed = kept(tmp_path, "a", run=setup()) / "run.json.xz"
    xz.pack(packed.with_suffix(""))
    packed.write_bytes(packed.read_bytes()[:-4])
    with pytest.raises(StoreError) as refused:
        benchmarks.page(packed.parent.parent)
    assert refused.value.remedy == f"git checkout HEAD -- {packed}"
