"""Run by test_around in a process of its own: the kernels under Triton's interpreter against torch in fp64.

Prints one JSON object: {case: errors relative to the largest entry}; exits 77 where there is no interpreter.
"""

# ruff: noqa: E402 - what follows imports triton

import json

import interpreted
import torch

interpreted.begin()

import around_cases

FP32, BF16 = torch.float32, torch.bfloat16
found = {
    "conv fp32": around_cases.conv(FP32, [70, 1, 0, 2, 60, 3], 70, 4),
    "conv fp32, width 2": around_cases.conv(FP32, [2, 3], 5, 2),
    "conv bf16": around_cases.conv(BF16, [64, 1, 65], 64, 4),
    "gate fp32": around_cases.gate(FP32, 130, 70),
    "gate bf16": around_cases.gate(BF16, 64, 48),
    "mixer fp32": around_cases.mixer("triton_whole"),
}
print(json.dumps(found))
