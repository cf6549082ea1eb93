"""Which parameters Muon takes, and that its update is that of torch's own optimizers on whole gradients."""

import pytest
import torch
from train_kit import good

from model.definition import memory
from model.definition.memory import Layout
from model.definition.recipes import Recipe
from model.families.sizes import SIZES

pytestmark = pytest.mark.upstream
# What AdamW keeps of two dimensions: lookup tables, head, and M²RNN's convolution and rates. All others are Muon's.
ADAMW = {
    "embedding.word_embeddings.weight",
    "output_layer.weight",
    "ngram.table.weight",
    "structure.embeddings.structure.weight",
    "structure.embeddings.dep_level.weight",
    "decoder.layers.11.mixer.conv_weight",
    "decoder.layers.11.mixer.D",
}


def test_muon_takes_the_matrices_of_hidden_layers_one_by_one(stack, text):
    ended = stack.run("trained:routed", str(text))
    good([ended])
    wrong = {n: found for n, (sides, found) in ended.value.items() if found != (sides == 2 and n not in ADAMW)}
    assert wrong == {}
    assert ended.value.keys() >= ADAMW and sum(found for _, found in ended.value.values()) > 120


def test_experts_of_a_grouped_layer_are_matrices_too(megatron):
    assert megatron.call(marked_names) == ["experts.linear_fc1.weight0", "experts.linear_fc1.weight1"]


def marked_names():
    from model.step import muon

    model = torch.nn.Module()
    model.experts = torch.nn.Module()
    model.experts.linear_fc1 = layer = torch.nn.Module()  # as Transformer Engine's grouped layers name them
    layer.weight0, layer.weight1 = (torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2))
    layer.bias0, model.experts.table = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, 3))
    muon.mark(model, SIZES["nam56r"].matrices)
    return [name for name, parameter in model.named_parameters() if getattr(parameter, muon.MARK, False)]


@pytest.mark.parametrize("name", ["nam56r_quarter", "nam56r"])
def test_the_estimate_counts_the_matrices_within_a_percent(name, megatron):
    adamw, muon = (memory.estimate(SIZES[name], Layout(), optimizer=one)["optimizer"] for one in ("adamw", "muon"))
    assert megatron.call(numbers_in_matrices, name) * 4 / memory.GIB == pytest.approx(adamw - muon, rel=0.01)


def numbers_in_matrices(name):
    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.step import muon
    from model.step.network import Nam56r

    with torch.device("meta"):
        model = Nam56r(SIZES[name], Run(), catalogue.choose(SIZES[name], Run()))
    muon.mark(model, SIZES[name].matrices)
    return sum(parameter.numel() for parameter in model.parameters() if getattr(parameter, muon.MARK, False))


@pytest.mark.parametrize(
    ("world", "options"), [(1, {}), (2, {}), (2, {"overlap_grads": True, "overlap_weights": True, "bucket": 20_000})]
)
def test_an_update_is_that_of_torch(world, options, stack, text):
    """Of settings that are not the defaults. With small buckets many matrices are cut between ranks."""
    given = {"options": options, "muon_momentum": 0.8, "muon_steps": 3, "learning_rate": 1e-2}
    ended = [child.wait() for child in stack.ranks(world, "trained:updates", str(text), **given)]
    good(ended)
    for one in ended:
        assert (one.value["muon"], one.value["adamw"]) == (0, pytest.approx(0, abs=1e-5))
        assert one.value["matrices"] > 20
        assert (one.value["cut"] > 0) == (world > 1)


def test_a_checkpoint_tells_of_muon_where_it_is_taken():
    adamw, muon = (Recipe(size="nam56r_tiny", optimizer=name).hyperparameters() for name in ("adamw", "muon"))
    own = {"optimizer": "muon", "muon_momentum": 0.95, "muon_steps": 5}
    assert muon == adamw | own and not own.keys() & adamw.keys()
