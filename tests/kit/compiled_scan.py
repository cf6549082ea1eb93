"""Run by test_scan in a process of its own: what the kernels of Mamba-3's backward by blocks take of a GPU, as JSON."""

import json

from compiled import resources

from model.layers.mamba3 import kernels, scan

SIZES = {"S": 4096, "H": 112, "G": 8, "R": 4, "N": 128, "P": 64, "A": 32, "T": 16, "TOKENS": 32, "HEADS": 16}
SIZES |= {"ADDED": True, "COLUMNS": scan.COLUMNS, "SIZE": 8192, "BLOCK": scan.CARRIED, "AHEAD": 2, "REVERSE": True}
HALVES = ("q", "k", "x", "z", "above", "turned_q", "turned_k", "v", "dy", "states", "slopes", "y", "dv", "d_x", "d_z")
HALVES += ("d_turned", "d_turned_q", "d_turned_k")

found = {}
for name, launched in scan.OPTIONS.items():
    kernel = getattr(kernels, name)
    sizes = {one: value for one, value in {**SIZES, **launched}.items() if one in kernel.arg_names}
    options = {one: value for one, value in launched.items() if one not in sizes}
    found[name] = resources(kernel, dict.fromkeys(HALVES, "*bf16") | {"size": "i32"}, sizes, options)
print(json.dumps(found))
