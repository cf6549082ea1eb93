"""The indexer's loss of rows by the kernels, by pack 12's functions row by row and in fp64, on the same inputs."""

from unittest import mock

import torch
from megatron.core.transformer.experimental_attention_variant import dsa, dsa_indexer_loss, dsa_masking
from row_loss import RowLoss

from model.layers.attention import divergence

HEADS, WIDTH = 16, 8  # fewer heads, and a score is 0 because every head's ReLU is shut: ties, of which top-k takes any
FP32 = (torch.float32,) * 3
SCALE, COEFF, ABOVE = 0.25, 0.5, -3.0  # the last is the gradient of the loss
# {what: (bounds of documents, row, topk, attention's heads and channels, ReLU)}
CASES = {
    "documents": ((0, 5, 32, 64, 70, 96), 32, 6, 4, 16, True),
    "one row": ((0, 1, 2, 40), 40, 7, 3, 16, True),
    "no powers of two": ((0, 1, 20, 39, 40, 51, 78, 117), 39, 9, 3, 24, True),
    "tiles": ((0, 1, 60, 70, 100, 140), 70, 20, 2, 16, True),
    "all keys": ((0, 33, 40, 66), 33, 50, 2, 16, True),
    "no ReLU": ((0, 20, 45), 45, 5, 2, 16, False),
    "after the last document": ((0, 10, 19, 38), 19, 4, 2, 16, True),
}
PADDED = 57  # tokens of the last case: a row of no document


def made(name, dtypes, device):
    """(q, weights, k) of these dtypes, what FusedDSAIndexerLoss takes after them but for its options, and the row."""
    cuts, row, topk, heads, channels, relu = CASES[name]
    tokens = PADDED if "after" in name else cuts[-1]
    draw = torch.Generator().manual_seed(tokens)
    leaves = [torch.randn(tokens, 1, *of, generator=draw) for of in ((HEADS, WIDTH), (HEADS,), (WIDTH,))]
    query, key = (torch.randn(tokens, 1, of, channels, generator=draw) for of in (heads, 1))
    leaves = [leaf.to(device, dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
    query, key = query.to(device, dtypes[0]), key.to(device, dtypes[0])
    ends = torch.arange(1, tokens + 1, device=device)
    bounds = torch.tensor(cuts, device=device)
    starts = bounds[torch.searchsorted(bounds[1:], ends - 1, right=True)]  # as Megatron's masks find them
    if "after" in name:
        ends[[0, 25, -1]] = starts[[0, 25, -1]]  # queries without a key, which no run has
    return leaves, (query, key.expand(-1, -1, heads, -1), starts, ends, topk, relu), row


def by(loss, leaves, rest, sparse, groups):
    """Indices, loss and the gradients of q, weights and k."""
    query, key, starts, ends, topk, relu = rest
    given = [leaf.detach().requires_grad_() for leaf in leaves]
    indices, value = loss.apply(
        *given, query, key, SCALE, topk, COEFF, None, sparse, groups, starts, ends, None, None, False, relu
    )
    assert not indices.requires_grad
    gradients = torch.autograd.grad(value, given, value.new_tensor(ABOVE))
    assert [one.dtype for one in gradients] == [leaf.dtype for leaf in leaves]
    return indices, value, *gradients


def exact(leaves, rest, sparse, row):
    """The same in fp64, query by query; gradients by autograd, and none through the target."""
    query, key, starts, ends, topk, relu = (t.detach().double().cpu() if torch.is_tensor(t) else t for t in rest)
    q, weights, k = given = [leaf.detach().double().cpu().requires_grad_() for leaf in leaves]
    tokens, heads = query.shape[0], query.shape[2]
    indices, losses = torch.full((1, tokens, min(topk, row)), -1), []
    for at in range(tokens):
        keys = torch.arange(int(starts[at]), int(ends[at]))
        if len(keys) == 0:
            continue
        each = torch.einsum("hd,sd->hs", q[at, 0], k[keys, 0])
        scores = ((each.relu() if relu else each) * weights[at, 0][:, None]).sum(0)
        best = scores.topk(min(topk, row, len(keys))).indices
        indices[0, at, : len(best)] = keys[best]
        seen = best if sparse else torch.arange(len(keys))
        logits = torch.einsum("hd,shd->hs", query[at, 0], key[keys[seen], 0]) * SCALE
        target = logits.softmax(-1).sum(0) / heads
        losses.append((target * (target.log() - scores[seen].log_softmax(-1))).sum())
    loss = COEFF * torch.stack(losses).sum() / tokens
    return indices, loss.detach(), *torch.autograd.grad(loss * ABOVE, given)


def error(got, want):
    """Relative error norm, inf for another shape or where one is not finite."""
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    if got.shape != want.shape or not got.isfinite().all():
        return float("inf")
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def case(name, sparse, dtypes, device, groups):
    """{"fp64" or "pack 12": [the share of indices that differ, errors of the loss and of its gradients]}."""
    leaves, rest, row = made(name, dtypes, device)
    indices, *got = by(divergence.KernelLoss(row), leaves, rest, sparse, groups)
    wanted = {
        "fp64": exact(leaves, rest, sparse, row),
        "pack 12": by(RowLoss(dsa.FusedDSAIndexerLoss, row), leaves, rest, sparse, groups),
    }
    found = {}
    for what, (chosen, *want) in wanted.items():
        differ = (indices.cpu() != chosen.cpu()).float().mean().item()
        found[what] = [differ, *(error(*pair) for pair in zip(got, want, strict=True))]
    return found


def evaluated(name, device, groups):
    """Whether indices and loss without a gradient are those with one, and whether anything asks for gradients then."""
    leaves, rest, row = made(name, FP32, device)
    query, key, starts, ends, topk, relu = rest
    loss = divergence.KernelLoss(row)
    given = (query, key, SCALE, topk, COEFF, None, True, groups, starts, ends, None, None, False, relu)
    indices, value = loss.apply(*leaves, *given)
    with torch.no_grad():
        again, without = loss.apply(*(leaf.detach().requires_grad_() for leaf in leaves), *given)
    chosen, with_grad, *_ = by(loss, leaves, rest, True, groups)
    same = all(torch.equal(one, chosen) for one in (indices, again))
    same &= all(torch.equal(one, with_grad) for one in (value, without))
    return same, value.requires_grad or without.requires_grad


def one_leaf(name, device, groups):
    """Error of the keys' gradient where nothing else asks for one."""
    leaves, rest, row = made(name, FP32, device)
    want = by(divergence.KernelLoss(row), leaves, rest, False, groups)[-1]
    query, key, starts, ends, topk, relu = rest
    leaf = leaves[2].detach().requires_grad_()
    given = (query, key, SCALE, topk, COEFF, None, False, groups, starts, ends, None, None, False, relu)
    _, value = divergence.KernelLoss(row).apply(*leaves[:2], leaf, *given)
    return error(torch.autograd.grad(value, leaf, value.new_tensor(ABOVE))[0], want)


def coarse(device, groups):
    """``case``, against pack 12 alone, with an epsilon that shows."""
    with mock.patch.object(dsa_indexer_loss, "INDEXER_LOSS_EPS", 0.05):
        return case("documents", False, FP32, device, groups)["pack 12"]


def masked(keys, device):
    """How many scores, valid keys and tiles' bounds of three rows differ from pack 12's, dense; and valid ones, sparse.

    Documents begin anywhere; in the last row each query has its own key alone.
    """
    from megatron.core.transformer.experimental_attention_variant.ops import triton_indexer

    draw = torch.Generator().manual_seed(keys)
    place, first = torch.arange(keys), 11
    start = (torch.rand(3, keys, generator=draw) < 0.03).long().mul(place).cummax(-1).values
    start[2] = place
    end = (place + 1).expand(3, keys)
    scores = torch.randn(3, keys, keys, generator=draw)
    want = torch.stack(
        [dsa_masking.build_valid_mask_from_starts_ends(*row, place) for row in zip(start, end, strict=True)]
    )
    bounds = torch.empty(3, -(-keys // triton_indexer.TILE_M), 2, dtype=torch.int32, device=device)
    origin = first + torch.arange(3)[:, None] * keys
    found = []
    for sparse in (False, True):
        mine, valid = scores.clone().to(device), torch.ones(scores.shape, dtype=torch.bool, device=device)
        divergence.indexer_mask[3 * keys,](
            mine,
            valid.view(torch.uint8),
            (start + origin).view(-1).to(device),
            (end + origin).view(-1).to(device),
            bounds,
            first,
            KEYS=keys,
            TILE=triton_indexer.TILE_M,
            SPARSE=sparse,
            **divergence.block(keys),
        )
        pairs = (
            (mine, scores.masked_fill(~want, -torch.inf)),
            (valid, want & (not sparse)),
            (bounds, triton_indexer._key_bounds(want)),
        )
        found += [int((got.cpu() != ideal).sum()) for got, ideal in pairs]
    return found


FAINT = (1.0, 1e-11, 1e-21, 0.0)  # targets' sums about and below both of pack 12's epsilons


def kernel(keys, sparse, device, weight=-1.5):
    """The worst query's relative error of its loss and of its scores' gradient: (against fp64, against pack 12).

    Of three rows, targets as faint as FAINT, and every fifth query without keys.
    """
    draw = torch.Generator().manual_seed(keys)
    shape, tokens = (3, keys, keys), 3 * keys
    scores, target = 4 * torch.randn(shape, generator=draw), torch.rand(shape, generator=draw)
    place = torch.arange(keys)
    start, end = (place * torch.rand(3, keys, generator=draw)).long(), place.expand(3, keys) + 1
    end = torch.where(place % 5 == 4, start, end)
    inside = (place >= start[..., None]) & (place < end[..., None])
    chosen = inside & (torch.rand(shape, generator=draw) < 0.5) if sparse else inside
    target *= torch.tensor(FAINT)[torch.arange(keys) % len(FAINT)][:, None] * chosen
    scores, origin = scores.masked_fill(~inside, -torch.inf), torch.arange(3)[:, None] * keys + 7
    wanted = [_exact(scores, target, chosen, weight), _pack(scores, target.clone(), chosen, weight)]
    mine, losses = scores.to(device), torch.empty(tokens, device=device)
    divergence.indexer_divergence[tokens,](
        mine,
        target.to(device),
        chosen.to(device).view(torch.uint8),
        (start + origin).view(-1).to(device),
        (end + origin).view(-1).to(device),
        losses,
        7,
        weight,
        EPS=dsa_indexer_loss.INDEXER_LOSS_EPS,
        GRADS=True,
        KEYS=keys,
        SPARSE=sparse,
        **divergence.block(keys),
    )
    got = losses.view(3, keys), mine
    return [[_worst(one, two) for one, two in zip(got, want, strict=True)] for want in wanted]


def _worst(got, want):
    """The largest difference of a query over its largest number."""
    got, want = (t.double().cpu().view(*t.shape[:2], -1) for t in (got, want))
    if not got.isfinite().all():
        return float("inf")
    scale = want.abs().amax(-1)
    return float(((got - want).abs().amax(-1) / scale.where(scale > 0, torch.ones(()).double())).max())


def _exact(scores, target, chosen, weight):
    """By the definition, in fp64: epsilons where a share or a sum is smaller than they are."""
    eps, target = 1e-10, target.double()
    share = target / target.sum(-1, keepdim=True).clamp_min(eps)
    logs = scores.double().masked_fill(~chosen, -torch.inf).log_softmax(-1)
    terms = share * (share.clamp_min(eps).log() - logs)
    slope = (logs.exp() - share) * weight
    return terms.masked_fill(~chosen, 0.0).sum(-1) * weight, slope.masked_fill(~chosen, 0.0)


def _pack(scores, target, chosen, weight):
    """By pack 12's functions, as it calls them."""
    target = dsa_indexer_loss.normalize_indexer_target_(target)
    logs = dsa_masking.masked_log_softmax(scores, chosen, dim=-1)
    return dsa_indexer_loss.indexer_kl_per_row(target, logs) * weight, (logs.exp() - target) * chosen * weight
