"""Run by test_weighted_gelu in a process of its own: the kernels under Triton's interpreter against fp64.

Prints one JSON object: {case: [errors of y, dx and dweights relative to the largest entry]}; exits 77 where there is
no interpreter.
"""

# ruff: noqa: E402 - what follows imports triton

import json

import interpreted
import torch

interpreted.begin()

import weighted_gelu_cases

CASES = {"fp32": (torch.float32, 5, 40), "bf16": (torch.bfloat16, 9, 64), "no tokens": (torch.bfloat16, 0, 64)}
print(json.dumps({name: weighted_gelu_cases.errors(*case) for name, case in CASES.items()}))
