"""Weights leave a run as safetensors and come back, bit for bit, from one layout and into another."""

import json

import pytest
import safetensors.torch
import torch
from train_kit import checkpoints, copy, good, measured, steps, train
from typer.testing import CliRunner

from model import weights as verb
from model.definition.memory import checkpoint_gib
from model.families.sizes import SIZES
from model.records import history
from model.saved import reading, tensor_files, weights
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

pytestmark = pytest.mark.upstream
COMMON = {"save_every": 100, "evaluate_every": 100}
LIMIT = 2**20


@pytest.fixture(scope="module")
def run(stack, text, tmp_path_factory):
    """A run of two steps in bf16 on one rank; ``held.txt`` has the digests of its parameters."""
    folder = tmp_path_factory.mktemp("weights")
    good(train(stack, folder / "run", text, steps=4, stop_after=2, bf16=True, weights=folder / "held.txt", **COMMON))
    return folder


@pytest.fixture(scope="module")
def exported(run):
    weights.export(run / "run", run / "exported", LIMIT)
    return run / "exported"


def held(folder):
    return dict(tensor_files.tensors(folder))


def equal(one, other):
    return one.keys() == other.keys() and all(
        value.dtype is other[name].dtype and torch.equal(value, other[name]) for name, value in one.items()
    )


def parameters(path):
    """The lines of parameters and buffers."""
    return [line for line in path.read_text().splitlines() if not line.split()[0].isdigit()]


def test_names_shapes_and_files_are_as_hugging_face_has_them(exported):
    config = tensor_files.config(exported)
    assert (config.model_type, config.size.name, config.step) == ("nam56r", "nam56r_tiny", 2)
    assert (config.sequence, config.recipe["steps"]) == (64, 4)  # of the run, not of the size
    tensors, size = held(exported), config.size
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", "ngram.table.weight"} <= tensors.keys()
    experts = [name for name in tensors if name.startswith("model.layers.3.mlp.experts.") and "up_proj" in name]
    assert len(experts) == size.experts.count
    assert tensors[experts[0]].shape == (size.experts.ffn, size.hidden) and tensors[experts[0]].dtype is torch.bfloat16
    assert tensors["model.layers.3.mlp.gate.e_score_correction_bias"].dtype is torch.float32
    assert not [name for name in tensors if "decoder" in name or "linear_" in name or "mixer" in name]
    index = json.loads((exported / tensor_files.INDEX).read_bytes())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors.values())
    files = sorted(exported.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == [file.name for file in files] and len(files) > 3
    single = max(value.nbytes for value in tensors.values())  # a tensor is not cut in two
    assert all(file.stat().st_size < max(LIMIT, single) + 2**16 for file in files)


def test_a_checkpoint_is_as_large_as_described(run):
    [saved] = history.events(history.read(run / "run"), "checkpoint")
    assert saved.detail["gib"] == pytest.approx(
        checkpoint_gib(SIZES["nam56r_tiny"]), rel=0.1
    )  # headers of small tensors


def test_a_new_run_begins_with_them(run, exported, stack, text, tmp_path):
    weights.bring(exported, tmp_path / "new")
    weights.export(tmp_path / "new", tmp_path / "again")
    assert equal(held(exported), held(tmp_path / "again"))
    notes = tmp_path / "held.txt"
    good(train(stack, tmp_path / "new", text, steps=4, stop_after=0, bf16=True, weights=notes, **COMMON))
    assert parameters(notes) == parameters(run / "held.txt")
    assert history.events(history.read(tmp_path / "new"), "imported weights")


def test_another_layout_takes_them_and_gives_them_back(exported, stack, text, tmp_path):
    one, two = weights.bring(exported, tmp_path / "one").parents[1], tmp_path / "two"
    copy(one, two)
    common = {"steps": 2, "fp32": True, "warmup": 0} | COMMON
    good(train(stack, one, text, accumulate=2, **common))
    good(train(stack, two, text, world=2, ep=2, accumulate=1, **common))
    [*expected], [*found] = measured(one), measured(two)
    assert [row[2] for row in found] == pytest.approx([row[2] for row in expected], rel=1e-5)
    assert checkpoints(two) == ["step_0000000", "step_0000002"] and len(steps(two)) == 2
    weights.export(two, tmp_path / "of two")
    weights.bring(tmp_path / "of two", tmp_path / "back")
    weights.export(tmp_path / "back", tmp_path / "again")
    assert equal(held(tmp_path / "of two"), held(tmp_path / "again"))


def refusal(work, *given):
    with pytest.raises(PatchlaneError) as caught:
        work(*given)
    assert caught.value.exit_code is Exit.USAGE and caught.value.remedy
    return caught.value.what


def test_what_is_not_whole_is_refused(run, exported, tmp_path):
    damaged = copy(run / "run", tmp_path / "damaged")
    [path] = reading.complete(damaged / "checkpoints")
    with (path / "__0_0.distcp").open("r+b") as file:
        file.write(b"wrong")
    assert "__0_0.distcp" in refusal(weights.export, damaged, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert str(exported) in refusal(weights.export, run / "run", exported)
    assert str(tmp_path) in refusal(weights.export, tmp_path, tmp_path / "none")
    assert str(run / "run") in refusal(weights.bring, exported, run / "run")
    assert tensor_files.CONFIG in refusal(weights.bring, tmp_path, tmp_path / "new")
    for name in ("model-00002-of", tensor_files.INDEX):
        cut = copy(exported, tmp_path / f"cut {name}")
        [file] = [path for path in cut.iterdir() if path.name.startswith(name)]
        file.write_bytes(file.read_bytes()[:40])
        assert file.name in refusal(weights.bring, cut, tmp_path / "new")
        file.unlink()
        assert file.name in refusal(weights.bring, cut, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def without_digests(exported, folder):
    """A copy of exported weights as they were written before they had digests."""
    index = json.loads((copy(exported, folder) / tensor_files.INDEX).read_bytes())
    index["metadata"].pop("sha256", None)
    (folder / tensor_files.INDEX).write_text(json.dumps(index))
    return folder


def test_one_changed_byte_of_any_file_is_refused(exported, tmp_path):
    for number, file in enumerate(sorted([*exported.glob("*.safetensors"), exported / tensor_files.CONFIG])):
        changed = copy(exported, tmp_path / f"changed {number}") / file.name
        held = bytearray(changed.read_bytes())
        held[-3] ^= 1  # of a value, or white space
        changed.write_bytes(held)
        assert str(changed) in refusal(weights.bring, changed.parent, tmp_path / "new")
    assert number > 2 and not (tmp_path / "new").exists()


def test_an_expert_that_is_missing_is_refused(exported, tmp_path):
    cut = copy(exported, tmp_path / "cut")
    index = json.loads((cut / tensor_files.INDEX).read_bytes())
    gone = next(name for name in index["weight_map"] if ".mlp.experts.1." in name)
    del index["weight_map"][gone]
    (cut / tensor_files.INDEX).write_text(json.dumps(index))
    assert ".mlp.experts." in refusal(weights.bring, cut, tmp_path / "new")


@pytest.mark.parametrize("change", ["shape", "name", "gone", "NaN"])
def test_tensors_that_are_not_the_size_s_are_refused_without_digests_too(exported, tmp_path, change):
    other = without_digests(exported, tmp_path / "other")
    index = json.loads((other / tensor_files.INDEX).read_bytes())
    name = "model.layers.11.m2rnn.conv_bias"
    path = other / index["weight_map"].pop(name)
    tensors = safetensors.torch.load_file(path)
    held = tensors.pop(name)
    if change == "NaN":
        held[3] = float("nan")
    called = name + "s" if change == "name" else name
    if change != "gone":
        tensors[called] = held[:-1] if change == "shape" else held
        index["weight_map"][called] = path.name
    safetensors.torch.save_file(tensors, path)
    (other / tensor_files.INDEX).write_text(json.dumps(index))
    assert called in refusal(weights.bring, other, tmp_path / "new")


def test_a_config_of_another_width_is_refused_without_digests_too(exported, tmp_path):
    other = without_digests(exported, tmp_path / "other")
    config = json.loads((other / tensor_files.CONFIG).read_bytes())
    config["size"]["ffn"] *= 2
    (other / tensor_files.CONFIG).write_text(json.dumps(config))
    assert "model.mtp.0.block.layers.1.mlp" in refusal(weights.bring, other, tmp_path / "new")


def test_the_commands(run, tmp_path):
    cli = CliRunner()
    done = cli.invoke(verb.app, ["export", str(run / "run"), str(tmp_path / "w")])
    assert done.exit_code == 0 and "model-00001-of-00001.safetensors" in done.output
    done = cli.invoke(verb.app, ["import", str(tmp_path / "w"), str(tmp_path / "new")])
    assert done.exit_code == 0 and checkpoints(tmp_path / "new") == ["step_0000000"] and not done.stderr
    old = without_digests(tmp_path / "w", tmp_path / "old")
    done = cli.invoke(verb.app, ["import", str(old), str(tmp_path / "newer")])
    assert done.exit_code == 0 and str(old) in done.stderr
