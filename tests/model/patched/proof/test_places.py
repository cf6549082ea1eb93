"""Which layer a step is in: the sequence of places that hooks tell."""

import pytest
import torch
from toy_model import Stage, Wrapped

from model.patched.proof.places import PlaceHooks


def sequence(model, stage):
    """The places of one step without repeats, each call of a layer in "<...>"."""
    told = []

    def enter(place):
        if not told or told[-1] != place:
            told.append(place)

    for number, layer in enumerate(stage.decoder.layers, 1):
        layer.calls = tuple(lambda n=number, way=way: told.append(f"<{n}{way}>") for way in ("f", "b"))
    places = PlaceHooks(model, enter)
    model().backward()
    return told, places


@pytest.fixture
def stage():
    return Stage([(int, int), (int, int)])


def test_forward_and_backward(stage):
    told, _ = sequence(stage, stage)
    assert told == [
        "entrance",
        "1 dsa",
        "<1f>",
        "outside layers",
        "2 moe",
        "<2f>",
        "outside layers",
        "head",
        "outside layers",
        "head backward",
        "2 moe backward",
        "<2b>",
        "1 dsa backward",
        "<1b>",
        "entrance backward",
        "outside layers",
    ]


def test_inside_wrappers(stage):
    told, places = sequence(stage, stage)
    places.remove()
    assert sequence(Wrapped(Wrapped(stage)), stage)[0] == told


def test_recomputed_layers_are_in_their_backward(stage):
    stage.decoder.recompute = True
    told, _ = sequence(stage, stage)
    assert told[told.index("head backward") :] == [
        "head backward",
        "2 moe backward",
        "<2f>",
        "<2b>",
        "1 dsa backward",
        "<1f>",
        "<1b>",
        "entrance backward",
        "outside layers",
    ]


def test_a_stage_in_the_middle_has_no_entrance_and_no_head(stage):
    stage.pre_process = stage.post_process = False
    told, _ = sequence(stage, stage)
    assert not {"entrance", "head", "head backward"} & set(told)
    assert told[-6:-1] == ["2 moe backward", "<2b>", "1 dsa backward", "<1b>", "entrance backward"]


def test_the_depths_of_mtp_have_their_names(stage):
    stage.mtp = torch.nn.Module()
    stage.mtp.layers = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
    told = []
    PlaceHooks(stage, told.append)
    stage.mtp.layers[1](torch.ones(1))
    assert told == ["mtp 2", "outside layers"]


def test_gradients_are_the_same(stage):
    stage().backward()
    want = {name: p.grad.clone() for name, p in stage.named_parameters()}
    stage.zero_grad()
    sequence(stage, stage)
    assert all(torch.equal(p.grad, want[name]) for name, p in stage.named_parameters())


def test_removed(stage):
    told, places = sequence(stage, stage)
    loss = stage()
    places.remove()
    before = list(told)
    loss.backward()  # a graph from before
    stage().backward()
    assert [place for place in told[len(before) :] if not place.startswith("<")] == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in stage.modules())
