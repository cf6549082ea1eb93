"""Run by test_whole in a process of its own: queries, keys and values written whole by Triton's interpreter.

Prints as JSON, by its argument: "cases", what whole_cases finds of each size, dtype and documents; "model", the small
model's losses and its gradients' relative error with the path and without. Exits 77 where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json
import sys

import interpreted
import isolated
import torch

interpreted.begin()
if missing := isolated.activate("cpu"):
    print(missing)
    raise SystemExit(77)

import tiny
import whole_cases

DTYPES = (torch.float32, torch.float16)  # the interpreter cannot multiply in bf16


def size(heads, widths):
    attention = tiny.SIZE.attention.model_copy(update=whole_cases.WIDTHS[widths])
    return tiny.SIZE.model_copy(update={"heads": heads, "attention": attention})


def cases():
    return [
        whole_cases.case(size(heads, widths), dtype, documents, "cpu", paths=whole_cases.UNTOUCHED)
        for heads, widths, documents in ((3, "alike", "several"), (5, "apart", "several"), (4, "alike", "no longer"))
        for dtype in DTYPES
    ]


def trained(path):
    model = whole_cases.model(tiny.SIZE, paths={**whole_cases.UNTOUCHED, "qkv": path})
    losses = model(packed_seq_params=tiny.packed(), **tiny.batch())
    losses.sum().backward()
    kinds = {type(one).__name__ for one in model.modules()}
    told = all(
        one.config is model.config for one in model.modules() if type(one).__name__ in ("PackedAttention", "MoELayer")
    )
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, kinds, told


def model():
    (losses, grads, kinds, told), (before, wanted, others, _) = trained("whole"), trained("joined")
    errors = [tiny.error(grads[name], wanted[name]) for name in wanted]
    return [tiny.error(losses, before), max(errors), len(grads) == len(wanted), sorted(kinds - others), told]


print(json.dumps({"cases": cases, "model": model}[sys.argv[1]]()))
