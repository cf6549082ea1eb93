"""Run by test_balance in a process of its own: the kernels by Triton's interpreter against fp64 and pack 39's method.

Prints as JSON, by its argument: "cases", {what: relative error} of each against fp64 and against pack 39, in CASES'
order, rows full and then padded; "model", what training the small model has of it. Exits 77 where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import functools
import json
import sys
from unittest import mock

import interpreted
import isolated
import torch

interpreted.begin()
if missing := isolated.activate("cpu"):
    print(missing)
    raise SystemExit(77)

from model.layers.experts import balance

balance.TOKENS, balance.NUMBERS = 32, 256  # so that a few tokens and documents fill several blocks

import balance_cases
import tiny
from megatron.core.transformer.moe.router import TopKRouter

METHOD = "_apply_packed_seq_aux_loss"


def theirs(router):
    return functools.partial(getattr(TopKRouter, METHOD), router)


def trained(path):
    """The gradients of the routers' weights by the balance loss alone, and how often pack 39's method was called."""
    model = tiny.fresh(paths={"m2rnn": "torch", "balance": path})  # none but this by the interpreter
    with mock.patch.object(TopKRouter, METHOD, autospec=True, side_effect=getattr(TopKRouter, METHOD)) as method:
        losses = model(packed_seq_params=tiny.packed(), **tiny.batch())
        (0.0 * losses).sum().backward()
    routers = [module for module in model.modules() if isinstance(module, TopKRouter)]
    return torch.stack([router.weight.grad for router in routers]), method.call_count


def in_training():
    """Relative error of those gradients, the largest of them, and the calls with the kernels and without."""
    (ours, with_kernels), (theirs, without) = trained("triton"), trained("megatron")
    return [balance_cases.error(ours, theirs), float(theirs.abs().max()), with_kernels, without]


def cases():
    return [
        {"fp64": balance_cases.case(name, padded, "cpu"), "pack 39": balance_cases.case(name, padded, "cpu", theirs)}
        for padded in (False, True)
        for name in balance_cases.CASES
    ]


print(json.dumps({"cases": cases, "model": in_training}[sys.argv[1]]()))
