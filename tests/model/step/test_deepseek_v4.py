"""DeepSeek-V4 as a network: against the model of plain torch, over packed documents, and what learns."""

import pytest
import v4_model as v4
import v4_network as net

from model.definition import parameters
from model.families.deepseek_v4 import SIZES

pytestmark = pytest.mark.upstream
LENGTHS = [21, 1, 0, 33, 9]  # one without a window, one of a single token, an empty one
DRAWN = [seed for seed in range(12) if v4.drawn(seed).csa < v4.drawn(seed).hca][:4]


def sized(seed):
    return net.TINY if seed < 0 else net.size(v4.drawn(seed))


def row(of, seed=1):
    return v4.row(LENGTHS, net.config(of), seed)


def compared(seed, recompute=False):
    """The largest differences of logits, losses and gradients, and the parameters without any gradient."""
    of = sized(seed)
    built, plain = net.pair(of, seed + 1, recompute=recompute)
    tokens, cu = row(of)
    expected, said = net.plain_losses(of, plain, tokens, cu)
    found = dict(zip(("logits", "mtp"), net.states(built, tokens, cu), strict=True))
    off = {name: net.off(found[name], said[name]) for name in found}
    losses = net.network_losses(of, built, tokens, cu)
    net.total(of, expected).backward()
    ours = {name: p.grad for name, p in built.named_parameters()}
    theirs = net.to_network({name: p.grad for name, p in plain.named_parameters() if p.grad is not None})
    gradients = {name: net.off(ours[name], grad, 1e-4) for name, grad in theirs.items() if ours[name] is not None}
    without = {name for name, grad in ours.items() if grad is None} ^ (ours.keys() - theirs.keys())
    gaps = {name: abs(losses[name] - float(expected[name].detach())) for name in expected}
    return off, gaps, max(gradients.values()), len(gradients) == len(theirs), sorted(without)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("seed", [-1, *DRAWN])
def test_values_losses_and_gradients_are_those_of_the_model_of_plain_torch(deepseek, seed, recompute):
    off, losses, gradients, whole, without = deepseek.call(compared, seed, recompute)
    assert max(off.values()) < 1e-5 and set(losses) == {"lm", "mtp", "index", "aux"}
    assert max(losses.values()) < 1e-5
    assert gradients < 1e-4 and whole and without == []


def round_trip():
    """Whether the weights are the same bits after both maps, and whether every tensor of each side has a name."""
    import torch

    built, plain = net.pair(net.TINY)
    ours, theirs = net.held(built), net.held(plain)
    back = net.to_plain(ours, theirs)
    again = net.to_network(back)
    same = all(torch.equal(back[name], tensor) for name, tensor in theirs.items())
    return (
        same,
        all(torch.equal(again[name], tensor) for name, tensor in ours.items() if name in again),
        ({name for name in ours if not name.endswith("_extra_state")} == set(again)),
    )


def test_names_map_both_ways_bit_for_bit(deepseek):
    assert deepseek.call(round_trip) == (True, True, True)


def built(name):
    """{key: shape} of a checkpoint of the size, and how many parameters the model has."""
    import torch

    from model.loop.saving import sharded

    with torch.device("meta"):
        model = net.network(SIZES[name])
    kept = sharded.weights(model).values()
    return {one.key: one.global_shape for one in kept}, sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["v4_tiny", "v4_small", "v4_medium"])
def test_a_checkpoint_has_the_names_and_shapes_that_the_kinds_say(deepseek, name):
    size = SIZES[name]
    shapes, count = deepseek.call(built, name)
    assert shapes == parameters.shapes(size)
    biases = (size.count("topk_moe") + size.mtp_depths) * size.experts.count  # parameters by count, buffers here
    assert count == parameters.total(size) - biases
