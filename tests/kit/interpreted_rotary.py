"""Run by test_rotary in a process of its own: the kernel under Triton's interpreter against Megatron's function.

Prints one JSON list of {what: largest difference} in CASES' order; exits 77 where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import itertools
import json

import interpreted
import torch

interpreted.begin(patched=True)

import rotary_cases

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((17, 1, 3, 64), (5, 2, 1, 24))
CASES = itertools.product(DTYPES, SHAPES, (True, False), ("whole", "part"), (1.0, 1.25))
print(json.dumps([rotary_cases.case(*case[:3], "cpu", *case[3:]) for case in CASES]))
