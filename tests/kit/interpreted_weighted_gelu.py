"""Run by test_weighted_gelu in a process of its own: the kernels under Triton's interpreter against fp64.

Prints one JSON object: {case: [errors of y, dx and dweights relative to the largest entry]}; exits 77 where there is
no interpreter.
"""

import json

import torch

from reproducers.probe.checks import CannotTest
from reproducers.probe.lanes import triton

try:
    triton.interpret_triton()
except CannotTest as error:
    print(error.reason, error.remedy)
    raise SystemExit(77) from None

import weighted_gelu_cases

CASES = {"fp32": (torch.float32, 5, 40), "bf16": (torch.bfloat16, 9, 64), "no tokens": (torch.bfloat16, 0, 64)}
print(json.dumps({name: weighted_gelu_cases.errors(*case) for name, case in CASES.items()}))
