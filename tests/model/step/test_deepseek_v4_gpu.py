"""DeepSeek-V4 as a network on a GPU: values, choices and gradients are a CPU's."""

import copy

import pytest
import torch
import v4_model as v4
import v4_network as net

pytestmark = [pytest.mark.gpu, pytest.mark.upstream]
LENGTHS = [21, 1, 0, 33, 9]


def both(seed):
    """The largest differences of logits, MTP's logits and gradients between CUDA and a CPU, fp32, the same weights; and
    how many parameters have a gradient on one of them alone."""
    of = net.TINY if seed < 0 else net.size(v4.drawn(seed))
    tokens, cu = v4.row(LENGTHS, net.config(of), seed + 1)
    _, plain = net.pair(of, seed + 1)
    found = []
    for device in ("cpu", "cuda"):
        model, row, bounds = copy.deepcopy(plain).to(device), tokens.to(device), cu.to(device)
        said = model(row, bounds, index_loss=True)
        losses = v4.losses(said, row, bounds)
        sum(losses.values()).backward()
        chosen = [a.chosen.cpu() for a in said["attended"] if a.chosen is not None]
        grads = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
        found.append((said["logits"].cpu(), said["mtp"].cpu(), chosen, grads))
    (logits, mtp, chosen, grads), (logits_on, mtp_on, chosen_on, grads_on) = found
    return (
        max(net.off(logits_on, logits), net.off(mtp_on, mtp)),
        all(torch.equal(one.sort().values, other.sort().values) for one, other in zip(chosen, chosen_on, strict=True)),
        max(net.off(grads_on[name], grads[name], 1e-4) for name in grads.keys() & grads_on.keys()),
        sorted(grads.keys() ^ grads_on.keys()),
    )


@pytest.mark.parametrize("seed", [-1, 0, 3])
def test_values_choices_and_gradients_are_those_of_a_cpu(gpu, seed):
    values, same, gradients, alone = gpu.call(both, seed)
    assert values < 1e-5 and same and gradients < 1e-4 and alone == []
