"""The command line of model.train: what it refuses and how, and runs of it in processes of their own."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from data_kit import BYTES, make_dataset
from forked import ENVIRONMENT
from train_kit import checkpoints, copy, good, options, steps, train

from model.definition import recipes
from model.families.sizes import SIZES
from model.kinds import catalogue
from model.patched import seams
from model.profile.bottlenecks import Profile
from model.profile.ceilings import NO_GPU
from model.profile.profiling import DATA, REST
from model.records import history
from model.step.clock import PHASES
from reproducers.record.schema import ROOT

pytestmark = [pytest.mark.upstream, pytest.mark.train]
NEEDED = "pack36,pack41,pack42,pack43"  # by the model as it is, and by checkpoints


def ended(stack, arguments, **environment):
    child = stack.start("trained:cli", arguments, environment=environment)
    return child.wait()


def refused(run, code, *words):
    assert run.code == code, run.said
    assert "Traceback" not in run.said
    for word in words:
        assert word in run.said


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"path": "attention=flash"}, ["--path attention=flash", f"KIND one of {', '.join(catalogue.PARTS)}"]),
        ({"path": "mamba3=tilelang_row"}, ["--path mamba3=tilelang_row", "tilelang_rows"]),
        ({"profile": "3"}, ["--profile 3", "fix: --profile FIRST:LAST"]),
        ({"profile": "3:2"}, ["--profile 3:2"]),
        ({"profile": "1:²"}, ["fix: --profile FIRST:LAST"]),
        ({"profile": "3:5", "steps": 4}, ["fix: --profile 3:4"]),
        ({"profile": "6:9", "steps": 4}, ["fix: --profile 4:4"]),
        ({"waits": 5, "steps": 4}, ["fix: --waits 4"]),
        ({"patches": "99"}, ["99"]),
        ({"patches": "3"}, ["pack03 has no patch for the stack", "fix: --patches all"]),
        ({"steps": 0}, ["--set steps"]),
        ({"ep": 0}, ["--set expert_parallel"]),
        ({"learning_rate": -1}, ["--set learning_rate"]),
        ({"learning_rate": "inf"}, ["--set learning_rate"]),
        ({"seed": -1}, ["--set seed"]),
        ({"wait_limit": "1e300"}, ["--set wait_limit"]),
        ({"steps": 10**22}, ["--set steps"]),
        ({"set": "clip=-1"}, ["--set clip", "--show-recipe"]),
        ({"micro_batch": 1_000_000}, ["error: a step of 2000000 rows", "fix: --set micro_batch="]),
        ({"sequence": 10_000_000}, ["error: a step of 2 rows", "the dataset has 0 of 10000000 tokens"]),
        ({"accumulate": 1_000_000}, ["error: a step of 1000000 rows", "fix: --set micro_batch="]),
    ],
)
def test_bad_options_are_refused(changed, words, stack, text, tmp_path):
    refused(ended(stack, options(tmp_path, text, **changed)), 2, *words)


def test_cuda_graphs_without_a_gpu_are_refused(stack, text, tmp_path):
    asked = [*options(tmp_path, text), "--cuda-graphs"]
    refused(ended(stack, asked), 77, "error: --cuda-graphs ", "fix: train without --cuda-graphs")


def test_options_are_read_without_torch():
    """Importing it takes seconds."""
    code = "import sys, model.train; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_an_unknown_size_is_refused(stack):
    refused(ended(stack, ["nam57r"]), 2, "'nam57r'", "fix: choose one of: nam56r,")


def test_a_world_that_does_not_divide_is_refused(stack, text, tmp_path):
    three = {"WORLD_SIZE": "3", "RANK": "0", "LOCAL_RANK": "0"}
    run = ended(stack, options(tmp_path, text, ep=2), **three)
    refused(run, 2, "error: 3 ranks ", "fix: torchrun --nproc-per-node")


def test_ranks_that_cannot_share_the_experts_are_refused(stack, text, tmp_path):
    places = {"WORLD_SIZE": "3", "RANK": "0", "LOCAL_RANK": "0"}
    refused(
        ended(stack, options(tmp_path, text, ep=3), **places), 2, "8 experts", "expert_parallel=, one of 1, 2, 4, 8"
    )


def test_a_dataset_of_more_ids_than_the_model_has_is_refused_at_once(stack, text, tmp_path):
    """Before anything is made or fetched; by both numbers."""
    copied, out = copy(text, tmp_path / "data"), tmp_path / "run"
    record = json.loads((copied / "dataset.json").read_text())
    record["tokenizer"]["vocab_size"] = 703
    (copied / "dataset.json").write_text(json.dumps(record))
    refused(ended(stack, options(out, copied)), 2, " 703 ids", " 320", "fix: train nam56r, nam56r_wide")
    assert not out.exists()


def test_a_dataset_without_structure_is_trained_on_with_a_line_that_says_so(stack, tmp_path):
    plain = make_dataset(tmp_path, options=replace(BYTES, structure=False)).folder
    run = ended(stack, options(tmp_path / "run", plain, steps=2, save_every=0, fp32=True))
    assert run.code == 0, run.said
    assert "no field dep_level, structure" in run.said
    assert len(steps(tmp_path / "run")) == 2
    refused(ended(stack, options(tmp_path / "over", plain, overlap_grads=True)), 2, "dep_level", "fix: train without")
    assert not (tmp_path / "over").exists()


def test_a_pipeline_longer_than_the_stack_has_cuts_is_refused(stack, text, tmp_path):
    places = {"WORLD_SIZE": "9", "RANK": "0", "LOCAL_RANK": "0"}
    refused(
        ended(stack, options(tmp_path, text, pp=9), **places), 2, "not 9", "fix: --set pipeline_parallel=8 or fewer"
    )


@pytest.mark.parametrize("asked", ["mamba3=tilelang", "moe=grouped_fused", "loss=liger"])
def test_a_path_that_cannot_run_here_stops_the_run(stack, text, tmp_path, asked):
    run = ended(stack, options(tmp_path / "run", text, path=asked))
    refused(run, 77, f"--path {asked}", f"--path {asked.partition('=')[0]}=auto")
    assert not (tmp_path / "run").exists()


def test_upstream_code_that_a_seam_was_not_written_for_stops_the_run(stack, text, tmp_path):
    run = stack.run("trained:on_other_code", options(tmp_path, text))
    refused(run, 2, "seam head", "python -m model.lock check")
    assert not (tmp_path / history.NAME).exists()


def test_no_dataset_and_no_room_for_the_run_are_refused(stack, text, tmp_path):
    refused(ended(stack, options(tmp_path, tmp_path / "none")), 2, "error: ", "/none", "fix: python -m model.data")
    (tmp_path / "file").touch()
    refused(ended(stack, options(tmp_path / "file", text)), 2, f"{tmp_path / 'file'} cannot be written", "fix: --out")


def test_a_dataset_without_held_out_rows_trains_and_a_line_says_that_nothing_is_evaluated(stack, tmp_path):
    bare = make_dataset(tmp_path, "bare", replace(BYTES, valid_percent=0), documents=80).folder
    given = options(tmp_path / "run", bare, steps=2, evaluate_every=1, save_every=0)
    done = ended(stack, given)
    assert done.code == 0, done.said
    records = history.read(tmp_path / "run")
    assert len(history.train(records)) == 2 and history.valid(records) == []
    lines = done.said.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("layer 1,"))
    assert "bare" in "".join(lines[:first]) and "held-out loss" in "".join(lines[:first])


@pytest.fixture(scope="module")
def unpatched(stack, text, tmp_path_factory):
    """A recipe in a process of its own, without patches, its last steps profiled."""
    out = tmp_path_factory.mktemp("unpatched") / "run"
    changed = {"patches": "none", "steps": 4, "warmup": 1, "profile": "3:4", "path": "mamba3=torch"}
    changed["set"] = "diagnose_every=2"
    run = [sys.executable, "-m", "model.train", *options(out, text, first="cpu_tiny", **changed)]
    done = subprocess.run(run, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return out, done


def test_a_run_without_patches_has_those_that_its_checkpoints_need(unpatched):
    out, _ = unpatched
    [event] = history.events(history.read(out), "patches")
    assert event.detail == {"packs": NEEDED}
    assert list(json.loads((out / "coverage.json").read_text())["packs"]) == NEEDED.split(",")


def test_a_run_records_its_paths_and_what_it_changes_upstream(unpatched):
    record = json.loads((unpatched[0] / "run.json").read_text())
    chosen = {kind: path["name"] for kind, path in record["paths"].items()}
    assert set(chosen) == set(SIZES["nam56r_tiny"].path_parts) and record["paths"]["mamba3"]["name"] == "torch"
    assert record["seams"] == seams.as_record(catalogue.seams(chosen))


def test_what_no_option_changes_is_the_recipes(unpatched):
    """cpu_tiny's rate, and no bf16: this run's parameters can be resumed as fp32 below."""
    records = steps(unpatched[0])
    assert len(records) == 4
    assert records[0].learning_rate == recipes.RECIPES["cpu_tiny"].learning_rate


def test_a_run_says_its_paths_and_its_loss_and_draws_both(unpatched):
    out, done = unpatched
    assert re.search(r"layer 3, Mamba-3\b.*\btorch\b", done.stderr)
    labels = [catalogue.PARTS[part].label for part in SIZES["nam56r_tiny"].path_parts]
    assert [label for label in labels if f", {label}: path " not in done.stderr] == []
    assert "step 4/4  loss " in done.stdout
    assert "held-out loss " in done.stdout
    for name in ("loss.png", "throughput.png"):
        assert (out / name).stat().st_size > 10_000
        assert str(out / name) in done.stdout
    assert "Traceback" not in done.stderr


def test_a_window_of_steps_is_profiled(unpatched):
    out, _ = unpatched
    profile = Profile.model_validate_json((out / "profile.json").read_text())
    assert (profile.first_step, profile.steps) == (3, 2)
    assert profile.device == "CPU"
    assert [phase.name for phase in profile.ranks[0].phases] == [DATA, *PHASES, REST]
    assert all(phase.host > 0 and phase.device is None for phase in profile.ranks[0].phases)
    assert (profile.ranks[0].ceilings.skipped, profile.ranks[0].limits) == (NO_GPU, [])
    assert "aten::" in (out / "profile.md").read_text()
    assert (out / "trace.json.gz").stat().st_size > 100_000


def test_a_profiled_step_is_as_most_are_and_not_diagnosed(unpatched):
    assert [record.step for record in history.diagnoses(history.read(unpatched[0]))] == [2]


def test_other_patches_are_refused_until_allowed(unpatched, stack, text, tmp_path):
    out = copy(unpatched[0], tmp_path / "run")
    [run] = train(stack, out, text, steps=5, fp32=True)
    refused(run, 2, "pack12 fix.patch: nothing and ", "fix: --patches pack36", "--patches-changed")
    assert checkpoints(out) == ["step_0000004"]
    assert len(steps(out)) == 4
    good(train(stack, out, text, steps=5, fp32=True, patches_changed_ok=True))
    packs = [event.detail["packs"] for event in history.events(history.read(out), "patches")]
    assert packs[0] == NEEDED
    assert "pack12" in str(packs[1])
    assert len(steps(out)) == 5


def test_recipes_are_listed_with_their_ranks():
    """ci/train reads the number of GPUs from it."""
    listed = subprocess.run([sys.executable, "-m", "model.train", "--list"], cwd=ROOT, capture_output=True, text=True)
    rows = [line.split()[:3] for line in listed.stdout.splitlines()]
    assert rows == [[recipe.name, recipe.size, str(recipe.ranks)] for recipe in recipes.RECIPES.values()]
