"""Weights of DeepSeek-V4 as transformers reads and writes them; what is not of the size is refused by name."""

import json
import shutil

import pytest
import safetensors.torch
import torch
import v4_hf
from typer.testing import CliRunner

from model import weights as verb
from model.alignment.deepseek_v4 import drawn, public
from model.definition import parameters
from model.families.sizes import SIZES
from model.saved import layouts, reading, tensor_files, weights, writing
from model.saved import public as names
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

TINY = SIZES["v4_tiny"]
LIMIT = 2**20
TABLE = "model.layers.0.mlp.gate.tid2eid"
SINKS = "model.layers.1.self_attn.sinks"
QUERY = "model.layers.1.self_attn.q_a_proj.weight"
OF_MTP = sorted(key for key in parameters.shapes(TINY) if key.startswith("mtp."))
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """{dtype: a checkpoint as a run in it saves one}."""
    v4_hf.needed()
    tensors, folder = names.imported(TINY, drawn.weights(TINY, 3)), tmp_path_factory.mktemp("checkpoints")

    def written(narrow):
        kept = {key: value.bfloat16() if narrow and _narrowed(key, value) else value for key, value in tensors.items()}
        said = {"step": 7, "size": TINY.model_dump(mode="json"), "hyperparameters": {"steps": 9}}
        return writing.write(folder / f"{narrow}" / "checkpoints" / reading.name(7), kept, said)

    return {"float32": written(False), "bfloat16": written(True)}


def _narrowed(key, tensor):
    return tensor.is_floating_point() and not any(part in key for part in TINY.fp32)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def exported(checkpoints, dtype, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / dtype
    weights.export(checkpoints[dtype], folder, LIMIT)
    return folder


@pytest.fixture(scope="module")
def loaded(exported):
    """transformers' model of it, and what it said of the names."""
    return public.require().AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)


@pytest.fixture(scope="module")
def plain(checkpoints, tmp_path_factory):
    """A folder in fp32 without digests, as other programs write them."""
    folder = tmp_path_factory.mktemp("plain") / "folder"
    weights.export(checkpoints["float32"], folder, LIMIT)
    index = json.loads((folder / tensor_files.INDEX).read_bytes())
    del index["metadata"]["sha256"]
    (folder / tensor_files.INDEX).write_text(json.dumps(index))
    return folder


@pytest.fixture
def folder(plain, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(plain, tmp_path / "folder")


def held(folder):
    return dict(tensor_files.tensors(folder))


def equal(one, other):
    return one.keys() == other.keys() and all(
        value.dtype is other[name].dtype and torch.equal(value, other[name]) for name, value in one.items()
    )


def whole(path):
    """A checkpoint's tensors."""
    return reading.read(path, reading.shapes(path))


def again(folder, tmp_path):
    """What is imported, exported."""
    weights.bring(folder, tmp_path / "brought")
    weights.export(tmp_path / "brought", tmp_path / "again", LIMIT)
    return held(tmp_path / "again")


def test_transformers_loads_an_export_with_every_tensor_and_no_other(exported, loaded, dtype):
    model, told = loaded
    assert type(model).__name__ == "DeepseekV4ForCausalLM" and not any(told.values()), told
    theirs, ours = model.state_dict(), held(exported)
    mtp = {name for name in ours if name.startswith("mtp.0.")}
    assert len(mtp) > 20 and equal(dict(theirs), {name: ours[name] for name in ours.keys() - mtp})
    assert str(model.dtype) == f"torch.{dtype}" and ours[TABLE].dtype is torch.int64
    assert len([*exported.glob("model-*-of-*.safetensors")]) > 3


def test_its_configuration_is_the_one_of_the_size(loaded):
    theirs, ours = loaded[0].config.to_dict(), public.config(TINY, {}).to_dict()
    changed_fields = {field for field in theirs.keys() | ours.keys() if theirs.get(field) != ours.get(field)}
    assert changed_fields <= {
        "_name_or_path",
        "dtype",
        "architectures",
        "bos_token_id",
        "eos_token_id",
        "max_position_embeddings",
    }
    assert {"layer_types", "rope_parameters", "mlp_layer_types", "hc_eps"} <= theirs.keys() and "name" not in theirs


def test_what_transformers_keeps_in_fp32_is_in_fp32(exported, dtype):
    with torch.device("meta"):
        model = public.require().AutoModelForCausalLM.from_config(public.config(TINY, {}), dtype=getattr(torch, dtype))
    ours = held(exported)
    theirs = (*model._keep_in_fp32_modules_strict, "norm", "hc_head")
    kept = {name for name in ours if any(part in name for part in theirs)}
    assert {name for name in ours if ours[name].dtype is torch.float32} == (
        kept if dtype == "bfloat16" else ours.keys() - {TABLE}
    )


def test_back_and_again_is_the_same_bits(checkpoints, exported, dtype, tmp_path):
    assert equal(again(exported, tmp_path), held(exported))
    [brought] = reading.complete(tmp_path / "brought" / "checkpoints")
    assert equal(whole(brought), whole(checkpoints[dtype]))
    assert tensor_files.config(exported).model_dump() == {
        "step": 7,
        "encoding": None,
        "sequence": None,
        "recipe": {"steps": 9},
        "size": TINY.model_dump(),
    }


@pytest.mark.parametrize("original", [True, False], ids=["its default", "its own names"])
def test_what_transformers_saves_is_read_and_a_run_draws_mtp(exported, original, tmp_path):
    """In one file, and in several; as loaded, and as it writes a model that nothing was loaded into."""
    ours = {name: tensor for name, tensor in held(exported).items() if not name.startswith("mtp.")}
    made = public.require().AutoModelForCausalLM.from_pretrained(exported)
    made.save_pretrained(tmp_path / "one", save_original_format=original)
    assert not (tmp_path / "one" / tensor_files.INDEX).exists()
    assert equal(again(tmp_path / "one", tmp_path), ours)
    made._weight_conversions = None  # as of a new model
    made.save_pretrained(tmp_path / "many", max_shard_size="1MB", save_original_format=original)
    assert equal(again(tmp_path / "many", tmp_path / "other"), ours)
    for run in (tmp_path / "brought", tmp_path / "other" / "brought"):
        [path] = reading.complete(run / "checkpoints")
        assert reading.progress(path)["drawn"] == OF_MTP and not reading.shapes(path).keys() & {*OF_MTP}


def test_files_by_deepseeks_names_are_read_with_mtp_and_so_is_what_transformers_makes_of_them(
    checkpoints, exported, dtype, tmp_path
):
    tmp_path.joinpath("makers").mkdir()
    shutil.copy(exported / tensor_files.CONFIG, tmp_path / "makers")
    layout = layouts.of(TINY, ["embed.weight"])
    kept = whole(checkpoints[dtype])
    tensors = {name: place.of(kept[place.key]).clone() for name, place in layout.items()}
    safetensors.torch.save_file(tensors, tmp_path / "makers" / tensor_files.SINGLE, {"format": "pt"})
    ours = held(exported)
    assert equal(again(tmp_path / "makers", tmp_path), ours)
    kind = public.require().AutoModelForCausalLM
    made, told = kind.from_pretrained(tmp_path / "makers", output_loading_info=True)
    assert not any(told.values()), told
    made.save_pretrained(tmp_path / "saved")
    found = again(tmp_path / "saved", tmp_path / "other")
    assert equal(found, {name: tensor for name, tensor in ours.items() if not name.startswith("mtp.")})


def changed(folder, **tensors):
    """A folder with other tensors in place of some, None: without it; of a name that it had not: beside them."""
    index = json.loads((folder / tensor_files.INDEX).read_bytes())
    found = held(folder) | tensors
    kept = {name: tensor for name, tensor in found.items() if tensor is not None}
    index["weight_map"] = dict.fromkeys(kept, "model-00001-of-00001.safetensors")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    safetensors.torch.save_file(kept, folder / "model-00001-of-00001.safetensors")
    (folder / tensor_files.INDEX).write_text(json.dumps(index))


def refusal(folder):
    run = folder.parent / "new"
    with pytest.raises(PatchlaneError) as caught:
        weights.bring(folder, run)
    assert caught.value.exit_code is Exit.USAGE and caught.value.remedy and not run.exists()
    return caught.value.what


def twice(table):
    table[5, 1] = table[5, 0]
    return table


def beyond(table):
    table[5, 1] = TINY.experts.count
    return table


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (SINKS, lambda tensor: tensor[:-1].clone(), "[3]"),
        (SINKS, lambda tensor: None, "missing"),
        (SINKS, lambda tensor: tensor.bfloat16(), "torch.bfloat16"),
        (BIAS, lambda tensor: tensor.bfloat16(), "torch.bfloat16"),
        (QUERY, lambda tensor: tensor.half(), "torch.float16"),
        (QUERY, lambda tensor: tensor.int(), "torch.int32"),
        (QUERY, lambda tensor: tensor.t().contiguous(), "[128, 32]"),
        (QUERY, lambda tensor: tensor / 0, "finite"),
        (TABLE, lambda tensor: tensor.float(), "torch.float32"),
        (TABLE, twice, "twice"),
        (TABLE, beyond, "8"),
        (TABLE, lambda tensor: tensor - 1, "-1"),
        ("model.layers.3.mlp.experts.gate_up_proj", lambda tensor: tensor[:-1].clone(), "[7, 128, 128]"),
        ("mtp.0.e_proj.weight", lambda tensor: None, "missing"),
    ],
)
def test_a_tensor_that_is_not_the_size_s_is_refused_by_name(folder, name, change, said):
    changed(folder, **{name: change(held(folder)[name])})
    found = refusal(folder)
    assert f"{folder}: {name} " in found and said in found


@pytest.mark.parametrize("name", ["model.layers.4.self_attn.sinks", "layers.1.attn.attn_sink", f"{QUERY}_scale_inv"])
def test_a_tensor_of_another_name_is_refused_by_it(folder, name):
    changed(folder, **{name: torch.zeros(4)})
    assert f"has no tensor {name}" in refusal(folder)


def test_without_mtp_at_all_a_run_draws_it(folder):
    gone = {name: None for name in held(folder) if name.startswith("mtp.")}
    changed(folder, **gone)
    done = CliRunner().invoke(verb.app, ["import", str(folder), str(folder.parent / "new")])
    assert done.exit_code == 0 and f"{folder} has no MTP: a run draws {len(OF_MTP)} tensors" in done.stderr
    [brought] = reading.complete(folder.parent / "new" / "checkpoints")
    assert reading.progress(brought)["drawn"] == OF_MTP


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (tensor_files.CONFIG, {"hidden_act": "gelu"}, "hidden_act"),
        (tensor_files.CONFIG, {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        (tensor_files.CONFIG, {"expert_dtype": "fp4"}, "expert_dtype"),
        (tensor_files.BESIDE, {"step": "last"}, "step"),
        (tensor_files.BESIDE, {"size": SIZES["v4_small"].model_dump(mode="json")}, "dimensions"),
    ],
)
def test_a_description_of_another_model_is_refused_by_file_and_field(folder, file, change, said):
    found = json.loads((folder / file).read_bytes())
    (folder / file).write_text(json.dumps(found | change))
    assert f"{folder / file}" in (message := refusal(folder)) and said in message


def test_dimensions_of_no_size_are_told(folder):
    found = json.loads((folder / tensor_files.CONFIG).read_bytes())
    (folder / tensor_files.CONFIG).write_text(json.dumps(found | {"hidden_size": 256}))
    assert f"{folder / tensor_files.BESIDE} is of other dimensions" in refusal(folder)
    (folder / tensor_files.BESIDE).unlink()
    assert "no size here" in refusal(folder)


def test_one_changed_byte_of_any_file_is_refused(checkpoints, tmp_path):
    weights.export(checkpoints["float32"], tmp_path / "exported", LIMIT)
    for number, file in enumerate(sorted(tmp_path.glob("exported/*"))):
        if file.name != tensor_files.INDEX:
            copied = shutil.copytree(tmp_path / "exported", tmp_path / f"{number}" / "folder") / file.name
            content = bytearray(copied.read_bytes())
            if file.suffix == ".json":
                content.append(ord(" "))
            else:
                content[-3] ^= 1
            copied.write_bytes(content)
            assert str(copied) in refusal(copied.parent)
    assert number > 4


def test_a_size_that_transformers_cannot_have_leaves_nothing(checkpoints, tmp_path):
    said = {"step": 0, "size": TINY.model_dump(mode="json")}
    said["size"]["experts"]["shared"] = 2
    path = writing.write(tmp_path / "checkpoints" / reading.name(0), {"weight": torch.zeros(3)}, said)
    with pytest.raises(PatchlaneError, match="n_shared_experts"):
        weights.export(path, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
