"""The routers' balance loss of packed documents by the kernels, by pack 39's method and in fp64, on the same inputs."""

import itertools
from types import SimpleNamespace

import torch

from model.layers.experts import balance

COEFFICIENT = 2.0**-6
ABOVE = -3.0  # the gradient of the loss
MANY = 2 * balance.NUMBERS // 16 + 10  # documents, in three blocks
# {what: (bounds, tokens, experts, topk)}
CASES = {
    "several": ((0, 5, 12, 13, 30), 30, 16, 4),
    "empty ones": ((0, 0, 9, 9, 9, 20, 31, 31, 31), 31, 16, 4),
    "tokens after the last": ((0, 7, 7, 18), 40, 16, 4),
    "one": ((0, 33), 33, 16, 4),
    "one, and tokens after it": ((0, 33), 50, 16, 2),
    "experts in no block": ((0, 11, 11, 25), 29, 13, 3),
    "few experts": ((0, 4, 10), 10, 3, 1),
    "experts in blocks": ((0, 4, 70, 90), 95, 40, 5),
    "topk 1": ((0, 6, 20, 20), 20, 16, 1),
    "long": ((0, 3, 3 + 3 * balance.TOKENS - 7, 3 * balance.TOKENS + 40), 3 * balance.TOKENS + 43, 8, 2),
    "many": ((*range(MANY), MANY + 150, MANY + 150), MANY + 160, 16, 2),
    "none": ((0, 0, 0), 12, 16, 4),
}


def made(bounds, tokens, experts, topk, padded, device):
    """scores, chosen, bounds: rows of topk choices, or of fewer, down to none, where ``padded``.

    Then, too, bounds are int64, and scores a part of a wider tensor.
    """
    draw = torch.Generator().manual_seed(tokens)
    scores = (2 * torch.randn(tokens, experts, generator=draw)).softmax(-1)
    scores, dtype = (scores.repeat(1, 2)[:, :experts], torch.int64) if padded else (scores, torch.int32)
    best = torch.randn(tokens, experts, generator=draw).topk(topk).indices
    kept = torch.rand(tokens, topk, generator=draw) < 0.7 if padded else torch.ones(tokens, topk, dtype=torch.bool)
    chosen = torch.zeros(tokens, experts, dtype=torch.bool).scatter(1, best, kept)
    return [t.to(device) for t in (scores, chosen, torch.tensor(bounds, dtype=dtype))]


def exact(scores, chosen, bounds, topk):
    """Loss, tokens and the scores' gradient in fp64, document by document."""
    scores, chosen, ends = scores.detach().double().cpu().requires_grad_(), chosen.double().cpu(), bounds.tolist()
    losses, counted = [], 0.0
    for first, end in itertools.pairwise(ends):
        counts = chosen[first:end].sum(0)
        counted += float(counts.sum()) / topk
        if counts.sum() > 0:
            losses.append((scores[first:end].sum(0) * counts).sum() / max(float(counts.sum()) / topk, 1.0) ** 2)
    loss = sum(losses, 0.0 * scores.sum()) * scores.shape[1] * COEFFICIENT / topk / max(len(losses), 1)
    (gradient,) = torch.autograd.grad(loss * ABOVE, scores)
    return loss.detach(), torch.tensor(counted, dtype=torch.float64), gradient


def a_router(experts, topk):
    """What pack 39's method reads of a router; ``attached`` keeps what it hands on."""
    one, attached = SimpleNamespace(size=lambda: 1, rank=lambda: 0), []

    def attach(*given, **named):
        attached.append((given, named))
        return "attached"

    return SimpleNamespace(
        tp_group=one,
        cp_group=one,
        tp_cp_group=one,
        topk=topk,
        attached=attached,
        config=SimpleNamespace(num_moe_experts=experts, sequence_parallel=False),
        attach_and_log_load_balancing_loss=attach,
    )


def by(method, experts, topk, scores, chosen, bounds):
    """Loss, tokens and the scores' gradient by what ``method`` makes of a router."""
    router, given = a_router(experts, topk), scores.detach().requires_grad_()
    assert method(router)("probs", given, chosen, COEFFICIENT, bounds) == "attached"
    (((probs, coefficient, loss, label, group), named),) = router.attached
    assert (probs, coefficient, label) == ("probs", COEFFICIENT, "seq_load_balancing_loss")
    assert group is router.tp_cp_group and list(named) == ["valid_token_count"]
    (gradient,) = torch.autograd.grad(loss, given, loss.new_tensor(ABOVE))
    return loss, named["valid_token_count"], gradient


def ours(router):
    return balance.balancing(router)(refuse)


def case(name, padded, device, theirs=None):
    """{what: relative error} of the loss, the tokens and the gradient; against ``theirs``(router), or fp64 for None."""
    bounds, tokens, experts, topk = CASES[name]
    given = made(bounds, tokens, experts, topk, padded, device)
    want = by(theirs, experts, topk, *given) if theirs else exact(*given, topk)
    found = zip(("loss", "tokens", "gradient"), by(ours, experts, topk, *given), want, strict=True)
    return {what: error(*pair) for what, *pair in found}


def error(got, want):
    """The largest difference over the largest number, inf for another shape; of zeros the difference."""
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    if got.shape != want.shape or not got.isfinite().all():
        return float("inf")
    scale = float(want.abs().max())
    return float((got - want).abs().max()) / (scale or 1.0)


def refuse(*arguments):
    raise AssertionError("pack 39's own method was called")
