"""A recipe from a file and options: which wins, what is refused and by which place, and YAML that comes back."""

import pytest

from model.definition.recipe_file import as_yaml, asked
from model.definition.recipes import RECIPES
from model.families.sizes import SIZES
from model.kinds.run import Options
from patchlane.base.errors import PatchlaneError


def written(tmp_path, text):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return path


def faults(*given):
    with pytest.raises(PatchlaneError) as refused:
        asked(*given)
    assert refused.value.remedy
    return refused.value.what.splitlines()


def test_a_file_changes_the_recipe_set_the_file_and_options_both(tmp_path):
    file = written(tmp_path, "size: nam56r_tiny\nweight_decay: 1e-2\nclip: 2\nsteps: 50\nbetas: [0.8, 0.9]\n")
    recipe, options = asked(None, file, ["clip=3", "epsilon=1e-6", "steps=60", "bucket=7"])
    assert (options.bucket, options.recompute) == (7, False)
    assert (recipe.weight_decay, recipe.clip, recipe.steps, recipe.betas) == (0.01, 3, 60, (0.8, 0.9))
    assert (recipe.epsilon, recipe.warmup, recipe.learning_rate) == (1e-6, 16, 2.5e-3)  # the rest is cpu_tiny's
    assert asked("1xh200_quarter", written(tmp_path, "clip: 2\n"))[0].clip == 2


@pytest.mark.parametrize("name", [*RECIPES, "nam56r_siso"])
def test_what_is_shown_comes_back_equal(name, tmp_path):
    recipe, _ = asked(name, None, ["epsilon=1e-15", "betas=[0.1, 0.2]", "mtp_loss_coeff=0.7"])
    assert asked(None, written(tmp_path, as_yaml(recipe)))[0] == recipe


def test_each_fault_is_a_line_with_file_line_and_field(tmp_path):
    file = written(tmp_path, "size: nam56r_tiny\n# a mistake\nweight_decy: 0.1\nclip: none\nbetas: [0.9]\n")
    lines = faults(None, file)
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{file}:5", "betas.1"],
        [f"{file}:4", "clip"],
        [f"{file}:3", "weight_decy"],
    ]


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        (("nam56r_tiny", None, ["clip=-1"]), "--set clip: "),
        (("nam56r_tiny", None, ["nothing=1"]), "--set nothing: "),
        (("nam56r_tiny", None, ["clip"]), "--set clip"),
        (("nam56r_tiny", None, ["clip=[1"]), "--set clip=[1"),
        (("nam56r_tiny", None, ["clip=true"]), "--set clip: "),
        (("nam56r_tiny", None, [f"steps={10**22}"]), "--set steps: "),
        (("nam56r_tiny", None, ["bucket=0"]), "--set bucket: "),
        (("nam56r_tiny", None, ["wait_limit=.inf"]), "--set wait_limit: "),
        (("nam56r_tiny", None, ["spike_window=10000000000000000000000"]), "--set spike_window: "),
        (("nam56r_tiny", None, ["size=nam56r"]), "size 'nam56r' "),
        (("nam56r_tiny", None, ["schedule=WSD"]), "decay_steps: "),
        ((None, None), "neither a size nor a recipe"),
        (("nam57r", None), "no size is named 'nam57r'"),
    ],
)
def test_options_that_are_no_recipe_are_refused(given, begins):
    [line] = faults(*given)
    assert line.startswith(begins)


@pytest.mark.parametrize("text", ["steps: true\n", "steps: 12345678901234567890123\n", "betas: [0.9, false]\n"])
def test_a_switch_and_a_count_beyond_all_are_refused_by_their_line(text, tmp_path):
    file = written(tmp_path, f"size: nam56r_tiny\n{text}")
    [line] = faults(None, file)
    assert line.startswith(f"{file}:2: {text.partition(':')[0]}")
    assert asked(None, written(tmp_path, "size: nam56r_tiny\nbf16: true\nsteps: 1000000000\n"))[0].bf16


def test_a_field_that_is_given_twice_is_refused_by_its_line(tmp_path):
    file = written(tmp_path, "size: nam56r_tiny\nsteps: 5\nclip: 1\nsteps: 7\n")
    [line] = faults(None, file)
    assert line.startswith(f"{file}:4: ") and "steps" in line


def test_a_folder_is_not_called_absent(tmp_path):
    with pytest.raises(PatchlaneError) as refused:
        asked(None, tmp_path)
    assert refused.value.remedy.startswith(f"ls {tmp_path},")


@pytest.mark.parametrize("text", ["clip: 2\n", "- 1\n", "clip: [\n", "", "1: 2\n", "size: nam57r\n"])
def test_files_that_are_no_recipe_are_refused(text, tmp_path):
    assert len(faults(None, written(tmp_path, text))) == 1


def test_a_file_of_another_size_or_none_at_all_is_refused(tmp_path):
    assert "nam56r_quarter" in faults("nam56r_tiny", written(tmp_path, "size: nam56r_quarter\n"))[0]
    assert "none.yaml" in faults("nam56r_tiny", tmp_path / "none.yaml")[0]


@pytest.mark.parametrize(("typed", "meant"), [("cpu_tny", "cpu_tiny"), ("nam56r_wid", "nam56r_wide"), ("qqq", None)])
def test_a_name_that_is_none_is_told_with_the_nearest_recipe_or_size(typed, meant):
    with pytest.raises(PatchlaneError) as refused:
        asked(typed, None)
    assert (f"is it {meant}" in refused.value.what) if meant else "is it" not in refused.value.what
    assert all(name in refused.value.remedy for name in [*RECIPES, *SIZES])


def test_all_that_set_takes_is_shown():
    shown = as_yaml(asked("cpu_tiny", None)[0])
    assert [field for field in Options.model_fields if f"\n# {field}: " not in shown] == []


def test_a_field_of_the_run_in_a_file_is_told_by_its_set(tmp_path):
    [line] = faults(None, written(tmp_path, "size: nam56r_tiny\nbucket: 7\n"))
    assert "my.yaml:2: " in line and "--set bucket=VALUE" in line
