"""Mamba-3's SISO scan as the recurrence, a step at a time in fp64, with the kernels' rotation of neighbours."""

import itertools
import math

import torch

HEADS, GROUPS, N, P, LENGTH = 4, 2, 8, 3, 11


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "Q": random(1, LENGTH, GROUPS, N),
        "K": random(1, LENGTH, GROUPS, N),
        "V": random(1, LENGTH, HEADS, P),
        "ADT": -random(1, HEADS, LENGTH).abs(),
        "DT": random(1, HEADS, LENGTH).abs(),
        "Trap": random(1, HEADS, LENGTH),
        "Q_bias": random(HEADS, N),
        "K_bias": random(HEADS, N),
        "Angles": random(1, LENGTH, HEADS, N // 4),
        "D": random(HEADS),
        "Z": random(1, LENGTH, HEADS, P),
    }


def turned(x, theta):
    """x [N] with its pairs (2 n, 2 n + 1) turned by theta [N / 4]; pairs beyond those stay."""
    out = x.clone()
    for n, angle in enumerate(theta):
        a, b = x[2 * n], x[2 * n + 1]
        out[2 * n], out[2 * n + 1] = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return out


def stepwise(x, bounds):
    """[1, S, H, P], one head and step after the other."""
    out = torch.zeros(1, LENGTH, HEADS, P, dtype=torch.float64)
    for head in range(HEADS):
        group = head * GROUPS // HEADS
        for first, end in itertools.pairwise(bounds):
            state, before = torch.zeros(N, P, dtype=torch.float64), torch.zeros(N, P, dtype=torch.float64)
            theta = torch.zeros(N // 4, dtype=torch.float64)
            for t in range(first, end):
                dt, share = x["DT"][0, head, t], x["Trap"][0, head, t].sigmoid()
                theta = theta + math.pi * x["Angles"][0, t, head].tanh() * dt
                q = turned(x["Q"][0, t, group] + x["Q_bias"][head], theta)
                k = turned(x["K"][0, t, group] + x["K_bias"][head], theta)
                v = x["V"][0, t, head]
                state = x["ADT"][0, head, t].exp() * (state + (1 - share) * dt * before)
                before = torch.outer(k, v)
                state = state + share * dt * before
                z = x["Z"][0, t, head]
                out[0, t, head] = (q @ state + x["D"][head] * v) * z * z.sigmoid()
    return out
