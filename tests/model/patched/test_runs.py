"""The plan of runs: what it refuses, and the commands that it gives."""

import pytest

from model.kinds import catalogue
from model.patched import runs, stacks
from patchlane.base.errors import PatchlaneError

PLAN = """schema_version: 1
runs:
  first: {about: a, recipe: cpu_tiny, gpus: 0, options: {steps: 2, save_every: 2}, paths: {loss: torch}}
  second: {like: first, about: b, after: first, options: {steps: 4}}
  third: {like: second, about: c, alike: [first, second]}
"""


@pytest.fixture
def read(tmp_path):
    def made(text):
        (tmp_path / "plan.yaml").write_text(text)
        return runs.read(tmp_path / "plan.yaml")

    return made


def test_a_run_has_the_fields_of_the_one_that_it_is_like(read, tmp_path):
    second = read(PLAN).runs["second"]
    assert (second.recipe, second.gpus, second.after) == ("cpu_tiny", 0, "first")
    assert (second.options, second.paths) == ({"steps": 4, "save_every": 2}, {"loss": "torch"})
    words = second.command(tmp_path)[1:]
    assert words[:3] == ["-m", "model.train", "cpu_tiny"] and "torch.distributed.run" not in words
    assert words[-6:] == ["--set", "steps=4", "--set", "save_every=2", "--path", "loss=torch"]
    assert "--cuda-graphs" not in words
    assert "--cuda-graphs" in second.model_copy(update={"cuda_graphs": True}).command(tmp_path)
    for several in ({"gpus": 2}, {"ranks": 2}):
        words = second.model_copy(update=several).command(tmp_path)
        assert words[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("after: first", "after: third", "third"),
        ("after: first", "after: gone", "gone"),
        ("alike: [first, second]", "alike: [first]", "alike"),
        ("like: first,", "like: gone,", "like"),
        ("gpus: 0", "gpus: -1", "gpus"),
        ("gpus: 0", "gpus: 0, ranks: 0", "ranks"),
        ("gpus: 0", "gpus: 2, ranks: 2", "ranks"),
        ("about: a", "abuot: a", "abuot"),
    ],
)
def test_a_malformed_plan_is_refused_by_its_field(read, old, new, field):
    with pytest.raises(PatchlaneError) as refused:
        read(PLAN.replace(old, new, 1))
    assert "plan.yaml:" in refused.value.what and field in refused.value.what


def test_a_run_brings_those_that_it_begins_with(read):
    assert list(read(PLAN).only(["second"]).runs) == ["first", "second"]
    with pytest.raises(PatchlaneError, match="gone"):
        read(PLAN).only(["gone"])


def test_the_projects_plan_names_stacks_and_paths_that_there_are(tmp_path):
    plan = runs.read()
    known = set(catalogue.paths())
    assert {run.stack for run in plan.runs.values()} == set(stacks.load())
    assert {f"{part}={path}" for run in plan.runs.values() for part, path in run.paths.items()} <= known
    kernels = {name: run.ahead() for name, run in plan.runs.items() if run.ahead()}
    assert {name: "--rows" in words for name, words in kernels.items()} == {
        "released": True,
        "chain": True,
        "newest": False,
    }
    assert [name for name, run in plan.runs.items() if "all,-53" in run.command(tmp_path)] == ["chain"]
