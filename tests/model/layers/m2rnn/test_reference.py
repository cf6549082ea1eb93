"""M²RNN's recurrence in torch against the formula written out, one document, head and token at a time."""

import pytest
import torch
import torch.nn.functional as F

from model.layers.m2rnn.reference import log_forget, m2rnn_reference

LENGTHS = [5, 1, 8, 0, 3]


def inputs(lengths=LENGTHS, heads=3, K=4, V=2, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    shapes = [(sum(lengths), *s) for s in [(K,), (K,), (heads, V), (heads,)]] + [(heads, V, V)]
    values = [torch.randn(s, generator=rng, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]
    return values, torch.tensor([0, *lengths]).cumsum(0).int()


def gate(x):
    return log_forget(x, torch.linspace(-1, 2, x.shape[1]).to(x.dtype), torch.linspace(-2, 1, x.shape[1]).to(x.dtype))


def by_the_formula(q, k, v, x, W, cu_seqlens):
    heads, A_log, dt_bias = range(v.shape[1]), torch.linspace(-1, 2, v.shape[1]), torch.linspace(-2, 1, v.shape[1])
    y = torch.zeros_like(v)
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        for n in heads:
            h = torch.zeros(k.shape[1], v.shape[2], dtype=v.dtype)
            for t in range(start, end):
                f = torch.exp(-torch.exp(A_log[n]) * F.softplus(x[t, n] + dt_bias[n]))
                h = f * h + (1 - f) * torch.tanh(h @ W[n] + torch.outer(k[t], v[t, n]))
                y[t, n] = q[t] @ h
    return y


def test_values_and_gradients_are_the_formulas():
    (q, k, v, x, W), cu_seqlens = inputs()
    y = m2rnn_reference(q, k, v, gate(x), W, cu_seqlens)
    expected = by_the_formula(q, k, v, x, W, cu_seqlens)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)  # the formula's constants are fp32
    dy = torch.randn_like(y)
    for ours, theirs in zip(
        torch.autograd.grad(y, (q, k, v, x, W), dy), torch.autograd.grad(expected, (q, k, v, x, W), dy), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_gradients_are_finite_differences():
    (q, k, v, x, W), cu_seqlens = inputs([3, 1], heads=2)
    assert torch.autograd.gradcheck(lambda *a: m2rnn_reference(*a[:3], gate(a[3]), a[4], cu_seqlens), (q, k, v, x, W))


def test_a_forget_gate_next_to_one_keeps_its_digits():
    """1 - f = 1e-7: computed as a difference in fp32 it would be 1.19e-7."""
    one = torch.ones(1, 1)
    y = m2rnn_reference(one, one, 20 * one[None], -1e-7 * one, torch.zeros(1, 1, 1), torch.tensor([0, 1]).int())
    assert y.item() == pytest.approx(1e-7, rel=1e-5)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-3)])
def test_low_precision_is_computed_in_fp32_and_returned_as_given(dtype, limit):
    """A slow head adds a thousandth of the state a token: in bf16 it would stand still."""
    (q, k, v, x, W), cu_seqlens = inputs([300], dtype=dtype)
    slow = gate(x).detach() * 0 - 1e-3
    y = m2rnn_reference(q, k, v, slow, W, cu_seqlens)
    wide = m2rnn_reference(*(a.double() for a in (q, k, v, slow, W)), cu_seqlens)
    assert y.dtype == dtype and gate(x).dtype == torch.float32
    assert (y - wide).abs().max() / wide.abs().max() < limit


@pytest.mark.parametrize("cu_seqlens", [[0, 3], [1, 17], [0, 9, 8, 17]])
def test_documents_that_do_not_cover_the_stream_are_refused(cu_seqlens):
    (q, k, v, x, W), _ = inputs()
    with pytest.raises(ValueError, match=r"\b17\b"):
        m2rnn_reference(q, k, v, gate(x), W, torch.tensor(cu_seqlens).int())
