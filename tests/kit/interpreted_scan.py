"""Run by test_scan in a process of its own: the scan by Hopper's kernels, torch in Gluon's place, against fp64.

Triton's kernels run by its interpreter. Prints one JSON list of {gradient, or output: relative error}, for rows with
documents and groups of 5, 8 and 6 heads; exits 77 where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json
import math

import interpreted
import torch
from torch import Tensor

interpreted.begin()

import emulated_gluon
import tiny

from model.layers.mamba3 import scan
from model.layers.mamba3.reference import mamba3_mimo_reference

NAMES = ["Q", "K", "V", "ADT", "DT", "Trap", "Q_bias", "K_bias", "MIMO_V", "MIMO_Z", "MIMO_Out", "Angles", "D", "Z"]


def inputs(rows: int, heads: int, groups: int, length: int) -> dict[str, Tensor]:
    """Drawn, fp32, of the sizes that the kernels are for; documents begin at tokens 0, 20 and 37: a state goes through
    a block of 16 whole, and a gradient back, if there are six."""
    draw = torch.Generator().manual_seed(heads)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    rank, state, channels = 4, 128, 64
    given = {
        "Q": normal(rows, length, rank, groups, state),
        "K": normal(rows, length, rank, groups, state),
        "V": normal(rows, length, heads, channels),
        "Z": normal(rows, length, heads, channels),
        "ADT": -0.3 * normal(rows, heads, length).abs(),
        "DT": normal(rows, heads, length).abs(),
        "Trap": normal(rows, heads, length),
        "Q_bias": normal(heads, rank, state),
        "K_bias": normal(heads, rank, state),
        "MIMO_V": normal(heads, rank, channels),
        "MIMO_Z": normal(heads, rank, channels),
        "MIMO_Out": normal(heads, rank, channels),
        "Angles": normal(rows, length, heads, state // 4),
        "D": normal(heads),
    }
    given["ADT"][..., [0, 20, 37]] = -40
    return given


def errors(by: scan.Launches, rows: int, heads: int, groups: int, length: int = 64) -> dict[str, float]:
    chunk, divisor = 16, 4
    given = inputs(rows, heads, groups, length)
    exact = {name: t.double().requires_grad_() for name, t in given.items()}
    out = mamba3_mimo_reference(**exact, chunk_size=chunk, rotary_dim_divisor=divisor, dtype=torch.float64)
    above = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    want = dict(zip(exact, torch.autograd.grad(out, list(exact.values()), above.double()), strict=True))
    angles, dt = given["Angles"].requires_grad_(), given["DT"].requires_grad_()
    summed = (math.pi * angles.tanh() * dt.transpose(1, 2).unsqueeze(-1)).cumsum(1)
    decay, _, _ = scan.decay_sums(given["ADT"], chunk)
    first = [given[name] for name in ("Q", "K", "V", "Q_bias", "K_bias", "MIMO_V", "MIMO_Out", "Z")]
    with torch.no_grad():
        row, _, _ = by.forward(
            *first,
            given["D"],
            given["MIMO_Z"],
            summed.detach(),
            decay,
            None,
            dt,
            given["Trap"],
            None,
            chunk_size=chunk,
            rotary_dim_divisor=divisor,
            dtype=torch.float32,
            return_state=False,
        )
        found = scan.mimo_backward(
            above,
            *first,
            given["MIMO_Z"],
            summed.detach(),
            decay,
            None,
            dt,
            given["Trap"],
            given["D"],
            None,
            chunk,
            divisor,
            torch.float32,
            by=by,
        )
    got = dict(zip(NAMES, found, strict=True))
    got["Angles"], turned = torch.autograd.grad(summed, (angles, dt), got["Angles"])
    got["DT"] = got["DT"] + turned
    return {name: tiny.error(got[name], want[name]) for name in NAMES} | {"out": tiny.error(row, out)}


hopper = emulated_gluon.launches()
found = [errors(hopper, 2, 10, 2, length=96)]
emulated_gluon.AT_ONCE[0] = 4  # 16 rows: whole ones, in rounds
found += [errors(hopper, 1, 16, 2), errors(hopper, 1, 12, 2)]
print(json.dumps(found))
