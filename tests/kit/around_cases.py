"""Inputs for what M²RNN computes around its recurrence, and how far the Triton kernels are from torch in fp64."""

import torch
import torch.nn.functional as F

from model.layers.common import documents
from model.layers.m2rnn import around
from model.layers.m2rnn.mixer import M2RNN, causal_conv


def compared(ours, exact, leaves, above):
    """Greatest error relative to the greatest entry, of the value and of each gradient; infinite for another dtype."""
    found = []
    for function, cast in ((ours, False), (exact, True)):
        given = [(t.double() if cast else t).detach().requires_grad_() for t in leaves]
        y = function(*given)
        found.append([y.detach(), *torch.autograd.grad(y, given, above.to(y.dtype))])
    for got, like in zip(found[0], [leaves[0], *leaves], strict=True):
        if got.dtype != like.dtype:
            return [float("inf")]
    return [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True)]


def conv(dtype, lengths, channels, width, device="cpu"):
    """x is cut out of wider rows, as the mixer has it."""
    draw = torch.Generator().manual_seed(channels)
    tokens = sum(lengths)
    wide, above = (torch.randn(tokens, channels + extra, generator=draw).to(device) for extra in (5, 0))
    weight, bias = torch.randn(channels, width, generator=draw), torch.randn(channels, generator=draw)
    place = documents.positions(torch.tensor([0, *lengths]).cumsum(0).int(), tokens).to(device)

    def ours(wide, weight, bias):
        return around.conv_silu(wide[:, 3 : 3 + channels], weight, bias, place)

    def exact(wide, weight, bias):
        return F.silu(causal_conv(wide[:, 3 : 3 + channels], weight, bias, place))

    leaves = [wide.to(dtype), weight.to(device, dtype), bias.to(device, dtype)]
    return compared(ours, exact, leaves, above.to(dtype))


def gate(dtype, tokens, inner, device="cpu"):
    """v and the gate are cut out of wider rows, as the mixer has them."""
    draw = torch.Generator().manual_seed(inner)
    y, v, g, above = (torch.randn(tokens, inner + extra, generator=draw).to(device) for extra in (0, 7, 9, 0))
    skip = torch.randn(inner, generator=draw).to(device)

    def ours(y, v, skip, g):
        return around.gated(y, v[:, 7:], skip, g[:, :inner])

    def exact(y, v, skip, g):
        return (y + skip * v[:, 7:]) * F.silu(g[:, :inner])

    return compared(ours, exact, [y.to(dtype), v.to(dtype), skip, g.to(dtype)], above.to(dtype))


def mixer(path):
    """The whole mixer on ``path`` against fp64 on torch's: its output, its input's gradient, its parameters'."""
    torch.manual_seed(0)
    layer, bounds = M2RNN(24, 3, 16, 16, path=path), torch.tensor([0, 5, 6, 6, 13]).int()
    with torch.no_grad():
        for parameter in layer.parameters():  # off their special initial values
            parameter += 0.1 * torch.randn_like(parameter)
    exact = M2RNN(24, 3, 16, 16).double()
    exact.load_state_dict(layer.state_dict())
    x, above, found = torch.randn(13, 24), torch.randn(13, 24), []
    for made in (layer, exact):
        leaf = x.to(made.W, copy=True).requires_grad_()
        y = made(leaf, bounds)
        y.backward(above.to(y))
        found.append([y.detach(), leaf.grad, *(parameter.grad for parameter in made.parameters())])
    return [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True)]
