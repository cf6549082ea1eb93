"""Inputs for M²RNN's recurrence, and how far the Triton kernels are from the fp64 reference on them."""

import torch

from model.layers.m2rnn import triton
from model.layers.m2rnn.reference import m2rnn_reference

NAMES = ("q", "k", "v", "log_f", "W")


def errors(dtype, lengths, heads, K, V, device="cpu", spread=0.2):
    """{tensor: greatest error relative to the greatest entry} of y and every gradient.

    ``spread`` of W around the identity: over hundreds of tokens 0.2 is chaotic, and an fp16 rounding of the state
    grows to a tenth of the gradients in any implementation; at 0.05 it stays at 4e-4.
    """
    values, cu_seqlens = _inputs(dtype, lengths, heads, K, V, device, spread)
    found = _run(triton.m2rnn_triton, values, cu_seqlens)
    expected = _run(m2rnn_reference, [x.double() for x in values], cu_seqlens)
    return {n: float((found[n] - expected[n]).abs().max() / expected[n].abs().max()) for n in expected}


def kept(dtype, lengths, heads, K, V, device="cpu"):
    """Names of the results that are not the same bits where states are kept; of two backward passes each."""
    values, cu_seqlens = _inputs(dtype, lengths, heads, K, V, device, 0.2)
    plain, own = ([x.detach().requires_grad_() for x in values] for _ in range(2))
    y, y_kept = triton.m2rnn_triton(*plain, cu_seqlens), triton.m2rnn_triton(*own, cu_seqlens, keep=True)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    found = [torch.autograd.grad(y, plain, dy, retain_graph=True)] + [
        torch.autograd.grad(y_kept, own, dy, retain_graph=True) for _ in range(2)
    ]
    pairs = [
        ("y", y, y_kept),
        *((n, a, b) for again in found[1:] for n, a, b in zip(NAMES, found[0], again, strict=True)),
    ]
    return [name for name, one, other in pairs if not torch.equal(one, other)]


def _inputs(dtype, lengths, heads, K, V, device, spread):
    rng = torch.Generator().manual_seed(sum(lengths))
    T = sum(lengths)
    q, k, v, log_f = (torch.randn(T, *shape, generator=rng) for shape in [(K,), (K,), (heads, V), (heads,)])
    W = torch.eye(V) + spread * torch.randn(heads, V, V, generator=rng)
    log_f = -(3 * log_f).exp()  # f from next to 0 to next to 1
    values = [q.to(dtype), k.to(dtype), v.to(dtype), log_f, W.to(dtype)]
    return [x.to(device) for x in values], torch.tensor([0, *lengths], device=device).cumsum(0).int()


def _run(function, values, cu_seqlens):
    leaves = [x.detach().requires_grad_() for x in values]
    y = function(*leaves, cu_seqlens)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16()  # exact in every dtype
    y.backward(dy.to(y))
    return {"y": y.detach().double(), **{n: x.grad.double() for n, x in zip(NAMES, leaves, strict=True)}}
