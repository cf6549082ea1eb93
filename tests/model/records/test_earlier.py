"""What is of an earlier start goes aside, and nothing else."""

import pytest

from model.records import earlier

LEFT = (
    "run.json",
    "run.from_66.json",
    "loss.png",
    "throughput.png",
    "coverage.json",
    "profile.md",
    "profile.json",
    "trace.json.gz",
    "oom.rank0.pickle",
    "nccl_trace_rank_0",
    "tensorboard/events.1",
    "evaluation/step_0000000.json",
    "evaluation/step_0000066.json",
)
STAYS = (
    "metrics.jsonl",
    "metrics.superseded.jsonl",
    ".metrics.lock",
    "checkpoints/step_0000066/x",
    "wandb/offline-1",
    "my.yaml",
)


@pytest.fixture
def run(tmp_path):
    for name in (*LEFT, *STAYS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_of_a_start_at_0_all_but_what_has_a_home_of_its_own(run):
    aside = earlier.set_aside(run, 0)
    assert aside == run / "earlier.1" and names(aside) == set(LEFT)
    assert names(run) - {f"earlier.1/{name}" for name in LEFT} == set(STAYS)
    assert earlier.set_aside(run, 0) is None
    (run / "run.json").touch()
    assert earlier.set_aside(run, 0) == run / "earlier.2"


@pytest.mark.parametrize(("step", "moved"), [(66, set()), (65, {LEFT[1], LEFT[12]})])
def test_of_a_resume_what_is_of_later_steps(run, step, moved):
    aside = earlier.set_aside(run, step)
    assert (names(aside) if aside else set()) == moved


def test_results_of_imported_weights_stay(run):
    assert LEFT[11] not in names(earlier.set_aside(run, 0, brought=True))
