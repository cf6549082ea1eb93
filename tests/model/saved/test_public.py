"""The map of names to a public model's: both ways, bit for bit, each tensor of both sides once."""

import pytest
import torch

from model.definition import parameters
from model.families.sizes import SIZES
from model.saved import public
from patchlane.base.errors import PatchlaneError

TINY = SIZES["v4_tiny"]
FAMILY = [name for name, size in SIZES.items() if size.layers_of_public > 1]
PLAIN = {
    "decoder.layers.5.mlp.router.expert_bias": ["model.layers.2.mlp.gate.e_score_correction_bias"],
    "decoder.layers.4.self_attention.core_attention.attn_sink": ["model.layers.2.self_attn.sinks"],
    "decoder.layers.1.mlp.router.tid2eid": ["model.layers.0.mlp.gate.tid2eid"],
    "decoder.layers.7.mlp.shared_experts.linear_fc1.weight": [
        "model.layers.3.mlp.shared_experts.gate_proj.weight",
        "model.layers.3.mlp.shared_experts.up_proj.weight",
    ],
    "decoder.final_norm.weight": ["model.norm.weight"],
    "mtp.layers.0.mtp_model_layer.layers.1.mlp.router.weight": ["model.mtp.0.block.layers.1.mlp.gate.weight"],
}


def drawn(size):
    rng = torch.Generator().manual_seed(0)
    return {key: torch.randn(shape, generator=rng) for key, shape in parameters.shapes(size).items()}


@pytest.mark.parametrize("key", PLAIN)
def test_names_of_one_tensor(key):
    assert [name for name, place in public.places(TINY).items() if place.key == key] == PLAIN[key]


@pytest.mark.parametrize("name", FAMILY)
def test_every_tensor_has_its_names_and_every_name_a_part_of_one(name):
    size = SIZES[name]
    places, shapes = public.places(size), parameters.shapes(size)
    assert {place.key for place in places.values()} == set(shapes)
    assert len(set(places.values())) == len(places)
    counted = {key: sum(place.key == key for place in places.values()) for key in PLAIN if key in shapes}
    assert counted == {key: len(PLAIN[key]) for key in counted}
    numbers = {int(key.split(".")[2]) for key in places if key.startswith("model.layers.")}
    assert numbers == set(range(len(size.compress_ratios)))


def test_there_and_back_is_the_same_bits():
    given = drawn(TINY)
    sent = public.exported(TINY, given)
    assert {name: tuple(tensor.shape) for name, tensor in sent.items()} == public.shapes(TINY)
    back = public.imported(TINY, sent)
    assert list(back) == list(given) and all(torch.equal(back[key], tensor) for key, tensor in given.items())
    gate, up = (sent[f"model.layers.3.mlp.shared_experts.{part}_proj.weight"] for part in ("gate", "up"))
    whole = given["decoder.layers.7.mlp.shared_experts.linear_fc1.weight"]
    assert torch.equal(gate, whole[: len(whole) // 2]) and torch.equal(up, whole[len(whole) // 2 :])


def without(tensors):
    del tensors["model.layers.1.self_attn.sinks"]


def beside(tensors):
    tensors["model.layers.9.self_attn.sinks"] = tensors["model.layers.1.self_attn.sinks"]


def longer(tensors):
    tensors["model.layers.1.self_attn.sinks"] = torch.zeros(5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without, "model.layers.1.self_attn.sinks"),
        (beside, "model.layers.9.self_attn.sinks"),
        (longer, "model.layers.1.self_attn.sinks has shape [5], v4_tiny wants [4]"),
    ],
)
def test_a_tensor_that_is_missing_or_not_of_the_size_is_named(change, named):
    given = public.exported(TINY, drawn(TINY))
    change(given)
    with pytest.raises(PatchlaneError, match=named.replace("[", r"\[")):
        public.imported(TINY, given)


def test_two_tensors_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(public, "_numbered", lambda name, layers: name.replace("q_a_norm", "kv_norm"))
    with pytest.raises(PatchlaneError, match="kv_norm"):
        public.places(TINY)
