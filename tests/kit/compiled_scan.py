"""Run by test_scan in a process of its own: what the kernels of Mamba-3's backward by blocks take of a GPU, as JSON."""

import json

from compiled import resources

from model.layers.mamba3 import kernels

SIZES = {"S": 4096, "H": 112, "G": 8, "R": 4, "N": 128, "P": 64, "A": 32, "T": 16, "TOKENS": 32, "STAGES": 3}
SIZES |= {"COLUMNS": 16, "SIZE": 8192, "BLOCK": 256, "AHEAD": 2}
HALVES = ("q", "k", "x", "z", "above", "turned_q", "turned_k", "v", "dy", "states", "slopes", "y", "dv", "d_x", "d_z")
HALVES += ("d_turned", "d_turned_q", "d_turned_k")
LAUNCHES = {
    "mimo_states": {"num_warps": 8, "maxnreg": 128}, "mimo_carry": {"num_warps": 1}, "mimo_backward": {"num_warps": 4},
    "mimo_gates": {"num_warps": 1}, "mimo_fold": {"num_warps": 1},
}  # fmt: skip
HEADS = {"mimo_fold": 16, "mimo_gates": 2}

found = {}
for name, options in LAUNCHES.items():
    kernel = getattr(kernels, name)
    sizes = {n: value for n, value in {**SIZES, "HEADS": HEADS.get(name)}.items() if n in kernel.arg_names}
    found[name] = resources(kernel, dict.fromkeys(HALVES, "*bf16"), sizes, options)
print(json.dumps(found))
