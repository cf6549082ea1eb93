"""Sparse MLA that keeps its output, and upstream's, both by torch in the place of TileLang's kernels."""

import pytest

pytestmark = pytest.mark.upstream


def compared(width):
    """Errors of output, statistics and gradients of ours against dense attention in fp64, then of ours against
    upstream's class; and how often each runs the forward kernel, in its forward and its backward pass."""
    import math
    import sys

    import tiny
    import torch
    from megatron.core.transformer.experimental_attention_variant.ops import sparse_mla, tilelang_dsa

    from model.layers.attention.kept import KeptSparseMLA
    from model.patched import seams

    calls = []

    def weights(q, kv, indices, scale):
        chosen = torch.zeros(*q.shape[:2], kv.shape[1] + 1, dtype=torch.bool)
        chosen.scatter_(2, indices[:, :, 0].long().where(indices[:, :, 0] >= 0, kv.shape[1]), True)
        scores = torch.einsum("bthd,bsd->bths", q, kv[:, :, 0]) * scale
        return scores.masked_fill(~chosen[:, :, None, :-1], -math.inf)

    def forward(q, kv, indices, sm_scale, d_v=512):
        calls.append("forward")
        scores = weights(q, kv, indices, sm_scale)
        return torch.einsum("bths,bsd->bthd", scores.softmax(-1), kv[:, :, 0, :d_v]), scores.logsumexp(-1)

    def backward(q, kv, o, do, indices, lse, sm_scale, delta):
        assert o is None
        p = (weights(q, kv, indices, sm_scale) - lse[..., None]).exp()
        d_scores = p * (torch.einsum("bthd,bsd->bths", do, kv[:, :, 0, : do.shape[-1]]) - delta[..., None]) * sm_scale
        d_kv = torch.einsum("bths,bthd->bsd", d_scores, q)
        d_kv[..., : do.shape[-1]] += torch.einsum("bths,bthd->bsd", p, do)
        return torch.einsum("bths,bsd->bthd", d_scores, kv[:, :, 0]), d_kv[:, :, None]

    stand = {"sparse_mla_fwd_interface": forward, "sparse_mla_bwd": backward}
    stand["sparse_mla_delta"] = lambda out, grad: (out * grad).sum(-1)
    scope = dict(vars(sparse_mla)) | stand
    exec(seams.source(f"{sparse_mla.__name__}:SparseMLA", sys.path), scope)  # None there, for want of TileLang
    draw = torch.Generator().manual_seed(width or 0)
    tokens, heads, channels, topk = 24, 3, 600 if width is None else width + 8, 8
    q = torch.randn(1, tokens, heads, channels, generator=draw, dtype=torch.float64).requires_grad_()
    kv = torch.randn(1, tokens, 1, channels, generator=draw, dtype=torch.float64).requires_grad_()
    indices = torch.stack([torch.randperm(tokens, generator=draw)[:topk] for _ in range(tokens)])
    indices[torch.rand(indices.shape, generator=draw) < 0.3] = -1
    indices[:, 0] = torch.arange(tokens)  # itself
    indices = indices.view(1, tokens, 1, topk).int()
    more = () if width is None else (width,)
    found, counts = [], []
    with pytest.MonkeyPatch.context() as patched:
        for name, value in stand.items():
            patched.setattr(sparse_mla, name, value)
        before = tilelang_dsa.SparseMLA
        with seams.replaced(tilelang_dsa, "SparseMLA", KeptSparseMLA):
            ours = tilelang_dsa.SparseMLA
        assert tilelang_dsa.SparseMLA is before
        for each in (ours, scope["SparseMLA"]):
            calls.clear()
            out, lse = each.apply(q, kv, indices, 0.1, *more)
            counts.append(len(calls))
            grads = torch.autograd.grad(torch.cos(out).sum(), (q, kv))
            counts.append(len(calls) - counts[-1])
            found.append([out, lse, *grads])
    exact = forward(q, kv, indices, 0.1, *more)
    found.append([*exact, *torch.autograd.grad(torch.cos(exact[0]).sum(), (q, kv))])
    mine, theirs, wanted = found
    return counts, [tiny.error(*pair) for other in (wanted, theirs) for pair in zip(mine, other, strict=True)]


@pytest.mark.parametrize("width", [None, 40])
def test_the_output_is_made_once_and_gradients_are_the_same(megatron, width):
    counts, errors = megatron.call(compared, width)
    assert counts == [1, 0, 1, 1]
    assert max(errors) < 1e-12


def on_a_gpu():
    """Of the model's sizes, three rows of 512 tokens: whether outputs and statistics are upstream's, bit by bit, and
    errors of gradients against its."""
    import tiny
    import torch
    from gpu_cases import random
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

    from model.layers.attention.kept import KeptSparseMLA

    row, rows, heads, topk, width = 512, 3, 32, 256, 64
    tokens = rows * row
    q, kv = random(1, tokens, heads, 2 * width, seed=0), random(1, tokens, 1, 2 * width, seed=1)
    place = torch.arange(tokens, device="cuda")
    scores = torch.rand(tokens, tokens, generator=torch.Generator("cuda").manual_seed(2), device="cuda")
    seen = (place[:, None] >= place) & (place[:, None] // row == place // row)
    scores = scores.masked_fill(~seen, -1) + torch.eye(tokens, device="cuda")  # itself
    best, chosen = scores.topk(topk)
    indices = chosen.where(best >= 0, -1).view(1, tokens, 1, topk).int()
    found = []
    for each in (KeptSparseMLA, tilelang_dsa.SparseMLA):
        given = q.clone().requires_grad_(), kv.clone().requires_grad_()
        out, lse = each.apply(*given, indices, 0.1, width)
        found.append([out, lse, *torch.autograd.grad(torch.cos(out.float()).sum(), given)])
    mine, theirs = found
    same = [torch.equal(*pair) for pair in zip(mine[:2], theirs[:2], strict=True)]
    pairs = zip(mine[2:], theirs[2:], strict=True)
    return same, [tiny.error(one.detach().float().cpu(), other.detach().float().cpu()) for one, other in pairs]


@pytest.mark.gpu
def test_on_a_gpu_it_is_upstreams(gpu):
    same, errors = gpu.call(on_a_gpu)
    assert same == [True, True]
    assert max(errors) < 1e-3  # sums over queries are atomic
