"""Sizes by name: of an architecture that is trained alone every command that would do more with it says so."""

import pytest
from typer.testing import CliRunner

from model import align, describe, train
from model.definition.recipe_file import asked
from model.families import deepseek_v4, nam56r, sizes
from model.kinds.run import Run
from model.loop import compile_mamba3, refusals
from patchlane.base.errors import PatchlaneError

TINY = deepseek_v4.SIZES["v4_tiny"]


def refused(app, *arguments):
    """What the command refuses with; nothing else may end it."""
    ended = CliRunner().invoke(app, [*arguments])
    assert isinstance(ended.exception, PatchlaneError), ended
    return ended.exception


def is_of_v4(error, name):
    """Whether the refusal says which size, why, and commands that take it or another."""
    said = error.what.startswith(f"{name} ") and TINY.unread in error.what
    return said and f"python -m model.train {name}" in error.remedy and "nam56r_tiny" in error.remedy


def test_both_architectures_sizes_are_named():
    assert set(sizes.SIZES) == {*nam56r.SIZES, *deepseek_v4.SIZES} and len(sizes.SIZES) == 10
    assert tuple(nam56r.SIZES) == sizes.READ
    assert sizes.named("v4_tiny") is TINY and sizes.readable("nam56r_tiny") is nam56r.TINY
    for by, offered in ((sizes.named, True), (sizes.readable, False)):
        with pytest.raises(PatchlaneError) as error:
            by("v4_flush")
        assert ("v4_flash" in error.value.remedy) is offered and "nam56r_tiny" in error.value.remedy


@pytest.mark.parametrize("name", deepseek_v4.SIZES)
def test_a_size_that_is_trained_alone_is_not_read(name):
    with pytest.raises(PatchlaneError) as error:
        sizes.readable(name)
    assert is_of_v4(error.value, name)


def test_a_record_is_of_the_architecture_that_it_says():
    assert sizes.recorded(nam56r.TINY.model_dump(mode="json")) == nam56r.TINY
    with pytest.raises(PatchlaneError) as error:
        sizes.recorded(TINY.model_dump(mode="json"))
    assert is_of_v4(error.value, "v4_tiny")
    for other in ({"name": "v4_tiny"}, "v4_tiny"):
        with pytest.raises(ValueError):
            sizes.recorded(other)


@pytest.mark.parametrize(
    ("app", "arguments"),
    [
        (describe.app, ["v4_tiny", "--plan", "2xh200_wide_host_ep1_nowait_profile_20261122"]),
        (compile_mamba3.app, ["v4_tiny", "--kernel", "fwd"]),
    ],
)
def test_commands_refuse_it_before_they_do_anything(app, arguments, monkeypatch):
    for build in ("build", "chosen"):
        monkeypatch.setattr(compile_mamba3.overlay, build, lambda *_, **__: pytest.fail("upstream was looked for"))
    assert is_of_v4(refused(app, *arguments), "v4_tiny")


@pytest.mark.parametrize(("app", "arguments"), [(align.app, ["v4_tiny"]), (train.app, ["v4_tiny", "--fresh"])])
def test_a_stack_that_it_is_not_built_on_is_refused(app, arguments, tmp_path):
    out = ["--out", str(tmp_path)] if app is train.app else []
    error = refused(app, *arguments, *out, "--stack", "dev")
    assert "v4_tiny" in error.what and "dev" in error.what and error.remedy == "--stack released or newest"


def test_cuda_graphs_of_it_are_refused():
    refusals.graphs(TINY, Run(on_cpu=False))
    refusals.graphs(nam56r.TINY, Run(cuda_graphs=True, on_cpu=False))
    with pytest.raises(PatchlaneError) as error:
        refusals.graphs(TINY, Run(cuda_graphs=True, on_cpu=False))
    assert error.value.what == TINY.uncaptured and "--cuda-graphs" in error.value.remedy


@pytest.mark.parametrize("app", [describe.app, train.app])
def test_a_name_that_is_none_is_answered_by_those_that_the_command_takes(app):
    error = refused(app, "v4_tin")
    assert "v4_tiny" in error.what and "v4_tiny" in error.remedy


def test_a_recipe_of_it_has_its_coefficients(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("size: v4_tiny\nsteps: 3\naux_loss_coeff: 0.5\n")
    recipe, _ = asked(None, file)
    assert recipe.sized() == TINY.with_coefficients({"aux_loss_coeff": 0.5})
    assert recipe.whole().indexer_loss_coeff == TINY.indexer.loss_coeff


def test_the_commands_of_the_remedy_end_well():
    assert CliRunner().invoke(train.app, ["v4_tiny", "--show-recipe"]).exit_code == 0
    assert CliRunner().invoke(train.app, ["nam56r_tiny", "--show-recipe"]).exit_code == 0
