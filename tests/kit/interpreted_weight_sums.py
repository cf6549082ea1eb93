"""Run by test_weight_sums in a process of its own: the kernel under Triton's interpreter.

Prints one JSON list: for each case whether all sums are what they have to be, bit by bit; exits 77 without one.
"""

# ruff: noqa: E402 - what follows imports triton

import json

import interpreted
import torch

interpreted.begin()

import weight_sums_cases

CASES = [(torch.float32, (3, 5), 15), (torch.bfloat16, (24, 16), 400), (torch.bfloat16, (65, 64), 4160)]
print(json.dumps([weight_sums_cases.right(*case, "cpu") for case in CASES]))
