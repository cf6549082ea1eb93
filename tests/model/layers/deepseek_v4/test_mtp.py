"""The multi-token prediction layer against the formula, with streams that differ."""

import torch
import v4_model as v4

from model.alignment.deepseek_v4 import formulas
from model.layers.deepseek_v4.mtp import MtpLayer


def module(c):
    return v4.fill(MtpLayer(c.hidden, c.streams, c.eps, c.hc_eps), 13).double()


def inputs(c, tokens=5):
    rng = torch.Generator().manual_seed(14)
    shapes = (tokens, 1, c.hidden), (tokens, 1, c.streams, c.hidden)
    return [torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for s in shapes]


def test_what_enters_the_layer_and_what_leaves_the_head_are_the_formulas():
    c = v4.Config()
    mtp, (embedded, streams), entered = module(c), inputs(c), []
    hidden, left = mtp(embedded, streams, lambda x: entered.append(x) or 2 * x)
    w = dict(mtp.named_parameters())
    for s in range(5):
        e = w["e_proj.weight"] @ formulas.rms(embedded[s, 0], c.eps, w["enorm.weight"])
        h = [w["h_proj.weight"] @ formulas.rms(x, c.eps, w["hnorm.weight"]) for x in streams[s, 0]]
        expected = torch.stack([e + one for one in h])
        torch.testing.assert_close(entered[0][s, 0], expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(left[s, 0], 2 * expected, rtol=0, atol=1e-13)
        head = formulas.rms(formulas.collapsed(2 * expected, w, "hc_head.", c), c.eps, w["final_layernorm.weight"])
        torch.testing.assert_close(hidden[s, 0], head, rtol=0, atol=1e-13)


def test_every_stream_and_every_parameter_gets_a_gradient():
    c = v4.Config()
    mtp, (embedded, streams) = module(c), inputs(c)
    hidden, _ = mtp(embedded, streams, lambda x: x)
    grads = torch.autograd.grad(hidden.square().sum(), [embedded, streams, *mtp.parameters()])
    assert all(bool(grad.any()) for grad in grads) and bool(grads[1].any(-1).all())
    assert not torch.allclose(grads[1][:, :, 0], grads[1][:, :, 1])


def test_its_parameters_are_those_of_the_published_count():
    d, n = 24, 3
    mtp = MtpLayer(d, n)
    assert sum(p.numel() for p in mtp.parameters()) == 2 * d * d + 3 * d + n * n * d + n + 1
    mtp.reset_parameters()
    assert bool((mtp.final_layernorm.weight == 1).all()) and 0.015 < float(mtp.e_proj.weight.detach().std()) < 0.025
