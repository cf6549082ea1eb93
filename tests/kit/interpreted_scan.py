"""Run by test_scan in a process of its own: the backward pass by blocks under Triton's interpreter against fp64.

Prints one JSON list of {gradient: relative error}, for rows with documents and groups of 2 and of 3 heads; exits 77
where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json
import math

import interpreted
import torch
from torch import Tensor

interpreted.begin()

import tiny

from model.layers.mamba3 import scan
from model.layers.mamba3.reference import mamba3_mimo_reference

CHUNK = 8
NAMES = ["Q", "K", "V", "ADT", "DT", "Trap", "Q_bias", "K_bias", "MIMO_V", "MIMO_Z", "MIMO_Out", "Angles", "D", "Z"]


def inputs(rows: int, heads: int, groups: int, divisor: int) -> dict[str, Tensor]:
    """Drawn, fp32: 64 tokens, rank 4, state 32, 16 channels; documents begin at tokens 0, 20 and 37."""
    draw = torch.Generator().manual_seed(heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    length, rank, state, channels = 64, 4, 32, 16
    given = {
        "Q": normal(rows, length, rank, groups, state), "K": normal(rows, length, rank, groups, state),
        "V": normal(rows, length, heads, channels), "Z": normal(rows, length, heads, channels),
        "ADT": -0.3 * normal(rows, heads, length).abs(), "DT": normal(rows, heads, length).abs(),
        "Trap": normal(rows, heads, length), "Q_bias": normal(heads, rank, state), "K_bias": normal(heads, rank, state),
        "MIMO_V": normal(heads, rank, channels), "MIMO_Z": normal(heads, rank, channels),
        "MIMO_Out": normal(heads, rank, channels), "Angles": normal(rows, length, heads, state // divisor),
        "D": normal(heads),
    }  # fmt: skip
    given["ADT"][..., [0, 20, 37]] = -40
    return given


def errors(rows: int, heads: int, groups: int, divisor: int) -> dict[str, float]:
    given = inputs(rows, heads, groups, divisor)
    exact = {name: t.double().requires_grad_() for name, t in given.items()}
    out = mamba3_mimo_reference(**exact, chunk_size=CHUNK, rotary_dim_divisor=divisor, dtype=torch.float64)
    above = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    want = dict(zip(exact, torch.autograd.grad(out, list(exact.values()), above.double()), strict=True))
    angles, dt = given["Angles"].requires_grad_(), given["DT"].requires_grad_()
    summed = (math.pi * angles.tanh() * dt.transpose(1, 2).unsqueeze(-1)).cumsum(1)
    with torch.no_grad():
        decay, _, _ = scan.decay_sums(given["ADT"], CHUNK)
        found = scan.mimo_backward(
            above, given["Q"], given["K"], given["V"], given["Q_bias"], given["K_bias"], given["MIMO_V"],
            given["MIMO_Out"], given["Z"], given["MIMO_Z"], summed.detach(), decay, None, dt, given["Trap"],
            given["D"], None, CHUNK, divisor, torch.float32,
        )  # fmt: skip
    got = dict(zip(NAMES, found, strict=True))
    got["Angles"], turned = torch.autograd.grad(summed, (angles, dt), got["Angles"])
    got["DT"] = got["DT"] + turned
    return {name: tiny.error(got[name], want[name]) for name in NAMES}


print(json.dumps([errors(2, 4, 2, 4), errors(1, 12, 4, 2)]))
