"""Run by test_triton in a process of its own: what M²RNN's kernels take of a GPU at nam56r's sizes, as JSON.

Argument: 16 or 32, the bits of the inputs.
"""

import json
import sys

from compiled import resources

from model.layers.m2rnn import kernels

SIZES = {"N": 44, "K": 64, "V": 16, "S": 4, "R": 16, "C": 16, "CHUNK": 32}
TYPES = {"cu": "*i32", "order": "*i32", "documents": "i32", "tokens": "i32"}

half = sys.argv[1] == "16"
types = TYPES | dict.fromkeys(("q", "k", "v", "w", "dy"), "*bf16" if half else "*fp32")
each = (kernels.m2rnn_forward, kernels.m2rnn_backward)
print(
    json.dumps(
        {kernel.__name__: resources(kernel, types, {**SIZES, "HALF": half}, {"num_warps": 1}) for kernel in each}
    )
)
