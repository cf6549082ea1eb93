"""The tiny model's first MoE layer against fp64 maths: whom the router chooses, with what weights, at what cost."""

import pytest
import tiny

pytestmark = pytest.mark.upstream
NUMBER = 2
FP32 = 1e-5


def biased(value):
    """The layer's MoE with a selection bias of deviation ``value``."""
    import torch

    moe = tiny.layer(NUMBER).mlp
    bias = torch.randn(tiny.SIZE.experts.count, generator=torch.Generator().manual_seed(7))
    moe.router.expert_bias.copy_(value * bias)
    return moe


def gates(hidden, moe):
    """(choice [T, E] bool, weights [T, E], scores [T, E]) of tokens [T, 1, h] in fp64."""
    import torch

    scores = (hidden.detach()[:, 0].double() @ moe.router.weight.double().T).sigmoid()
    kept = (scores + moe.router.expert_bias.double()).topk(tiny.SIZE.experts.topk).indices
    choice = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, kept, True)
    weights = scores * choice
    return choice, weights / weights.sum(1, keepdim=True), scores


def routed(value):
    """Relative error of the router's weights, tokens whose choice is not the reference's, and tokens whose choice is
    not what it is without the bias."""
    import torch

    hidden = tiny.hidden()
    with torch.no_grad():
        plain = biased(0).router(hidden)[1]
        moe = biased(value)
        weights, choice = moe.router(hidden)
        wanted, ideal, _ = gates(hidden, moe)
        biased(0)
    return tiny.error(weights, ideal), int((choice != wanted).any(1).sum()), int((choice != plain).any(1).sum())


def output(without_shared):
    """Relative error of the layer's output from the weighted experts plus (or without) the shared one."""
    import torch
    from torch.nn.functional import gelu

    def ffn(x, mlp):
        return gelu(x @ mlp.linear_fc1.weight.double().T) @ mlp.linear_fc2.weight.double().T

    hidden = tiny.hidden()
    with torch.no_grad():
        moe = biased(0.1)
        got, _ = moe(hidden)
        x, weights = hidden[:, 0].double(), gates(hidden, moe)[1]
        want = sum(weights[:, i, None] * ffn(x, e) for i, e in enumerate(moe.experts.local_experts))
        want = want if without_shared else want + ffn(x, moe.shared_experts)
        biased(0)
    return tiny.error(got[:, 0], want)


def routing_of_bf16():
    """(dtype of the logits, their relative error in fp64, that of a product in bf16) for tokens and weights in bf16."""
    import torch

    router, hidden = tiny.layer(NUMBER).mlp.router, tiny.hidden().detach().bfloat16()
    kept = router.weight.data
    try:
        router.weight.data = kept.bfloat16()
        with torch.no_grad():
            logits = router.gating(hidden)
            exact = hidden.double() @ router.weight.double().T
            rounded = hidden @ router.weight.T
    finally:
        router.weight.data = kept
    return str(logits.dtype), tiny.error(logits, exact), tiny.error(rounded, exact)


def balancing(value):
    """(logged auxiliary loss, the reference's), the relative error of its gradient by the router's weight, and the
    tokens each expert was counted with and has."""
    import torch
    from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker

    e, hidden = tiny.SIZE.experts, tiny.hidden()
    moe = biased(value)
    get_moe_metrics_tracker().clear()
    moe.router.local_tokens_per_expert.zero_()
    moe.zero_grad()
    weights, choice = moe.router(hidden)
    logged = get_moe_metrics_tracker().metrics["seq_load_balancing_loss"].values
    (weights * 0).sum().backward()

    leaf = moe.router.weight.detach().double().requires_grad_()
    scores = (hidden.detach()[:, 0].double() @ leaf.T).sigmoid()
    fraction = torch.zeros_like(scores).scatter_(1, scores.topk(e.topk).indices, 1).mean(0) / e.topk
    mean = (scores / scores.sum(1, keepdim=True)).mean(0)
    loss = e.count * (fraction.detach() * mean).sum()
    (ideal,) = torch.autograd.grad(e.aux_loss_coeff * loss, leaf)
    counted = moe.router.local_tokens_per_expert.tolist()
    biased(0)
    return {
        "logged": logged.tolist(),
        "loss": loss.item(),
        "gradient": tiny.error(moe.router.weight.grad, ideal),
        "counted": counted,
        "routed": choice.sum(0).tolist(),
    }


@pytest.mark.parametrize("value", [0, 0.1, 1])
def test_the_bias_changes_the_choice_and_not_the_weights(megatron, value):
    error, misrouted, moved = megatron.call(routed, value)
    assert error < FP32 and misrouted == 0
    assert (moved > tiny.TOKENS // 4) == (value > 0)


def test_the_output_is_the_chosen_experts_and_the_shared_one(megatron):
    assert megatron.call(output, False) < FP32
    assert megatron.call(output, True) > 0.1


def test_routing_is_computed_in_fp32(megatron):
    dtype, error, rounded = megatron.call(routing_of_bf16)
    assert dtype == "torch.float32"
    assert error < 1e-6 < 1e-3 < rounded


@pytest.mark.parametrize("value", [0, 1])
def test_the_auxiliary_loss_balances_the_unbiased_choice(megatron, value):
    """E Σ f P over the whole micro-batch, f by the scores alone; the tokens counted are by the biased choice."""
    found = megatron.call(balancing, value)
    layers = [found["loss"] if n == NUMBER else 0 for n in range(1, len(found["logged"]) + 1)]
    assert found["logged"] == pytest.approx(layers, rel=1e-5)
    assert found["gradient"] < FP32
    assert found["counted"] == found["routed"]


def loads():
    """expert and rank load that is found for counts which say what they must be."""
    import torch

    from model.step.measured import balance

    moe = tiny.layer(NUMBER).mlp

    def load(counts):
        return balance.load(balance.sums(counts, 2).tolist())

    found = balance.routed(moe)
    found[:] = 0
    even = load(found.clone())  # nothing routed yet
    experts = found.shape[1]
    found[0, 0] = experts  # one expert has all
    full = load(found.clone())
    found[0] = torch.arange(experts) % 2  # every other one, so each rank as much
    odd = load(found.clone())
    return tuple(found.shape), [(one.expert, one.rank) for one in (even, full, odd)]


def test_how_evenly_tokens_are_spread(megatron):
    shape, found = megatron.call(loads)
    assert shape == (1, tiny.SIZE.experts.count)
    assert found == [(1.0, 1.0), (tiny.SIZE.experts.count, 2.0), (2.0, 1.0)]
