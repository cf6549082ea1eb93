"""Run by test_whole in a process of its own: pack 54's kernels of dense MLA by Triton's interpreter, in the model.

Prints as JSON, by its argument: "cases", what whole_cases finds of each size, dtype and documents; "model", the
relative error of a small model's losses and of its gradients, with the kernels and without. Exits 77 where something is
missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json
import sys

import interpreted
import isolated
import torch

interpreted.begin()
if missing := isolated.activate("cpu", packs=(54,)):
    print(missing)
    raise SystemExit(77)

import tiny
import whole_cases

DTYPES = (torch.float32, torch.float16)  # the interpreter does not round bf16


def size(heads, widths):
    attention = tiny.SIZE.attention.model_copy(update=whole_cases.WIDTHS[widths])
    return tiny.SIZE.model_copy(update={"heads": heads, "attention": attention})


def cases():
    return [
        whole_cases.case(size(heads, widths), dtype, documents, "cpu", paths=whole_cases.UNTOUCHED)
        for heads, widths, documents in ((3, "alike", "several"), (5, "apart", "several"), (4, "alike", "no longer"))
        for dtype in DTYPES
    ]


def trained():
    model = whole_cases.model(tiny.SIZE, paths=whole_cases.UNTOUCHED)
    losses = model(packed_seq_params=tiny.packed(), **tiny.batch())
    losses.sum().backward()
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def model():
    losses, grads = trained()
    with whole_cases.joined():
        before, wanted = trained()
    errors = [tiny.error(grads[name], wanted[name]) for name in wanted]
    return [tiny.error(losses, before), max(errors), grads.keys() == wanted.keys()]


print(json.dumps({"cases": cases, "model": model}[sys.argv[1]]()))
