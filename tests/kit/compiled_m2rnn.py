"""Run by test_triton in a process of its own: what M²RNN's kernels take of a GPU at nam56r's sizes, as JSON.

Argument: 16 or 32, the bits of the inputs.
"""

import json
import sys

from compiled import resources

from model.layers.m2rnn import kernels, triton

SIZES = {"N": 44, "K": 64, "V": 16, "S": 4, "R": 16, "C": 16}
TYPES = {"cu": "*i32", "order": "*i32", "documents": "i32", "tokens": "i32"}

half = sys.argv[1] == "16"
types = TYPES | dict.fromkeys(("w", "grads", "y", "dv"), "*bf16" if half else "*fp32")
types |= dict.fromkeys(("states", "slopes"), "*fp16" if half else "*fp32")
found = {}
for name in (*triton.STAGES, "m2rnn_read"):
    kernel = getattr(kernels, name)
    sizes = SIZES | {"HALF": half, "TOKENS": triton.TOKENS, "STAGES": triton.STAGES.get(name)}
    if name == "m2rnn_read":
        types["q"], sizes["TOKENS"] = types["y"], triton.READ
    sizes = {one: value for one, value in sizes.items() if one in kernel.arg_names}
    found[name] = resources(kernel, types, sizes, {"num_warps": 1})
print(json.dumps(found))
