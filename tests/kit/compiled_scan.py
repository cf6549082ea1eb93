"""Run by test_scan in a process of its own: what the kernels of Mamba-3's scan by blocks take of a GPU, as JSON."""

import json

import torch
from compiled import Launches, resources, taken

from model.layers.mamba3 import kernels, scan
from model.layers.mamba3.hopper import backward, fold, forward, parts, states, turned

SIZES = {"S": 4096, "H": 112, "R": 4, "P": 64, "T": 16, "TOKENS": 32, "REVERSE": True, "BLOCK": 128}
HALVES = ("x", "z", "above", "y", "dv", "d_x", "d_z", "trap", "d_trap")

found = {}
for name, launched in scan.OPTIONS.items():
    kernel = getattr(kernels, name)
    sizes = {one: value for one, value in {**SIZES, **launched}.items() if one in kernel.arg_names}
    options = {one: value for one, value in launched.items() if one not in sizes}
    found[name] = resources(kernel, dict.fromkeys(HALVES, "*bf16") | {"size": "i32"}, sizes, options)

TOKENS, H, G, R, N, P, A, T = 512, 112, 8, 4, 128, 64, 32, 16


def half(*shape: int) -> torch.Tensor:
    return torch.empty(1, TOKENS, *shape, dtype=torch.bfloat16)


q, x, angles = half(R, G, N), half(H, P), torch.empty(1, TOKENS, H, A)
each, bias, table = torch.empty(1, H, TOKENS), torch.empty(H, R, N), torch.empty(H, R, P)
parts.programs = lambda _: 132  # an H200's multiprocessors
forward.weights = lambda dt, _: (dt, dt)  # Triton's, compiled above
gluon = {}
for room in (forward, states, turned, backward, fold):
    name = f"mimo_{room.__name__.rpartition('.')[2]}"
    gluon[name] = Launches(getattr(room, name))
    setattr(room, name, gluon[name])
given = scan.Given(q, q, bias, bias, angles, x, x, x, table, table, table, each, each, each, T)
forward.run_forward(
    q,
    q,
    x,
    bias,
    bias,
    table,
    table,
    x,
    torch.empty(H),
    table,
    angles,
    each,
    None,
    each,
    each,
    None,
    chunk_size=T,
    rotary_dim_divisor=4,
    dtype=torch.bfloat16,
)
grads = backward.run_backward(given, states.run_states(given))
fold.run_fold(given, grads[2:4], (q, q), torch.empty(2, TOKENS // 32, H, R, N), 32)
for name, launches in gluon.items():
    found |= {f"hopper {name} {at}": taken(ptx) for at, ptx in enumerate(launches.ptx)}
print(json.dumps(found))
