"""Run by test_scan in a process of its own: what the kernels of Mamba-3's backward by blocks take of a GPU, as JSON."""

import json

from compiled import resources

from model.layers.mamba3 import kernels

SIZES = {"S": 4096, "H": 112, "G": 8, "R": 4, "N": 128, "P": 64, "A": 32, "T": 16, "TOKENS": 16, "COLUMNS": 32}
SIZES |= {"SIZE": 8192, "BLOCK": 256, "AHEAD": 2}
HALVES = ("x", "z", "above", "turned", "turned_q", "turned_k", "v", "dy", "states", "slopes", "y", "dv", "d_x", "d_z")
HALVES += ("d_turned", "d_turned_q", "d_turned_k")
WARPS = {"mimo_rotate": 1, "mimo_expand": 1, "mimo_states": 8, "mimo_carry": 1, "mimo_backward": 4, "mimo_gates": 1}
WARPS |= {"mimo_fold": 1}
HEADS = {"mimo_rotate": 16, "mimo_fold": 16, "mimo_expand": 4, "mimo_gates": 2}

found = {}
for name, warps in WARPS.items():
    kernel = getattr(kernels, name)
    sizes = {n: value for n, value in {**SIZES, "HEADS": HEADS.get(name)}.items() if n in kernel.arg_names}
    found[name] = resources(kernel, dict.fromkeys(HALVES, "*bf16"), sizes, warps)
print(json.dumps(found))
