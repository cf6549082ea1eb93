"""Run by test_around in a process of its own: what the kernels around M²RNN's recurrence take of a GPU, as JSON."""

import json

from compiled import resources

from model.layers.m2rnn import around

SIZES = {"WIDTH": 4, "TOKENS": around.TOKENS, "COLUMNS": around.COLUMNS}
HALVES = ("x", "weight", "bias", "dy", "dx", "y", "v", "gate", "out", "above", "dv", "d_gate")
WHOLE = ("tokens", "channels", "stride", "inner", "stride_v", "stride_gate")
TYPES = {"place": "*i64"} | dict.fromkeys(HALVES, "*bf16") | dict.fromkeys(WHOLE, "i32")

found = {}
for name, warps in around.WARPS.items():
    kernel = getattr(around, name)
    sizes = {one: size for one, size in SIZES.items() if one in kernel.arg_names}
    found[name] = resources(kernel, TYPES, sizes, {"num_warps": warps})
print(json.dumps(found))
