"""Run by test_m2rnn_triton in a process of its own: the kernels under Triton's interpreter against the fp64 reference.

Prints one JSON object: errors {case: {tensor: error relative to the largest entry}}, and unlike {case: what keeping
states changes}; exits 77 where there is no interpreter.
"""

# ruff: noqa: E402 - what follows imports triton

import json

import interpreted
import torch

interpreted.begin()

import m2rnn_cases

from model.layers.m2rnn import triton as m2rnn_triton

CASES = {
    # name: (tokens, lanes, (dtype, lengths, heads, K, V))
    "fp32": (4, 3, (torch.float32, [5, 1, 11, 8, 0, 1], 2, 32, 16)),
    "fp32, odd sizes, one lane": (4, 1, (torch.float32, [3, 9], 1, 20, 8)),
    "bf16": (4, 2, (torch.bfloat16, [7, 1, 9], 2, 16, 16)),
    "fp16": (4, 2, (torch.float16, [7, 1, 9], 2, 16, 16)),
}


def poison(make):
    """``torch.empty`` filled with NaN, so that what a kernel leaves out is seen."""

    def empty(*args, **kwargs):
        made = make(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    return empty


def case(tokens, lanes, arguments):
    m2rnn_triton.TOKENS, m2rnn_triton.LANES = tokens, lanes
    return m2rnn_cases.errors(*arguments)


torch.empty, torch.Tensor.new_empty = poison(torch.empty), poison(torch.Tensor.new_empty)
found = {name: case(*arguments) for name, arguments in CASES.items()}
unlike = {name: m2rnn_cases.kept(*arguments) for name, (_, _, arguments) in CASES.items()}
print(json.dumps({"errors": found, "unlike": unlike}))
