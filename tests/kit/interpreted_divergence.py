"""Run by test_divergence in a process of its own: the kernels by Triton's interpreter against fp64 and pack 12.

Prints as JSON, by its argument: "cases", "kernel", "masked", "evaluated", what divergence_cases finds of each;
"model", what a small model's indexer learns. Exits 77 where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json
import sys
from types import SimpleNamespace
from unittest import mock

import interpreted
import isolated

interpreted.begin()
if missing := isolated.activate("cpu"):
    print(missing)
    raise SystemExit(77)

import divergence_cases
import tiny
import torch

from model.layers.attention import divergence

GROUPS = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))


def cases():
    """Of each case, dense and sparse; three rows of 39 are taken two and one at a time.

    Then of one with weights in bf16 alone: the interpreter cannot multiply by others.
    """
    divergence.ELEMENTS = 2 * 39**2
    fp32 = divergence_cases.FP32
    dense_and_sparse = [
        divergence_cases.case(name, sparse, fp32, "cpu", GROUPS)
        for name in divergence_cases.CASES
        for sparse in (False, True)
    ]
    half = divergence_cases.case("documents", True, (fp32[0], torch.bfloat16, fp32[0]), "cpu", GROUPS)
    return [*dense_and_sparse, half, divergence_cases.coarse("cpu", GROUPS)]


def kernel():
    return [divergence_cases.kernel(keys, sparse, "cpu") for keys in (1, 33, 64) for sparse in (False, True)]


def masked():
    return [divergence_cases.masked(keys, "cpu") for keys in (1, 64, 70, 130)]


def evaluated():
    """Whether evaluating gives the same, whether it asks for gradients, how often they were made; one leaf's error."""
    made, rebound = [], divergence.seams.rebound

    def watched(function, names):
        made.append(function.__name__)
        return rebound(function, names)

    with mock.patch.object(divergence.seams, "rebound", watched):
        same, asks = divergence_cases.evaluated("documents", "cpu", GROUPS)
    return same, asks, made, divergence_cases.one_leaf("documents", "cpu", GROUPS)


def in_model():
    """Errors of the indexer's gradients against path "stream", and pack 12's calls by each: (ours, stream)."""
    from megatron.core.transformer.experimental_attention_variant import dsa_indexer_loss

    found, calls, whole = {}, [], dsa_indexer_loss.indexer_loss_with_grads
    dsa_indexer_loss.indexer_loss_with_grads = lambda *given, **named: (calls.append(1), whole(*given, **named))[1]
    for path in ("triton", "stream"):
        # none but what is looked at by the interpreter
        others = {"m2rnn": "torch", "qkv": "joined", "balance": "megatron"}
        model = tiny.fresh(row=tiny.TOKENS, paths=others | {"indexer": path})
        before = len(calls)
        model(packed_seq_params=tiny.packed(), **tiny.batch()).sum().backward()
        indexers = [p.grad for name, p in model.named_parameters() if ".indexer." in name]
        found[path] = indexers, len(calls) - before
    (ours, with_kernels), (theirs, without) = found["triton"], found["stream"]
    errors = [divergence_cases.error(*pair) for pair in zip(ours, theirs, strict=True)]
    return max(errors), max(float(grad.abs().max()) for grad in theirs), with_kernels, without


torch.set_num_threads(1)
print(
    json.dumps(
        {"cases": cases, "kernel": kernel, "masked": masked, "evaluated": evaluated, "model": in_model}[sys.argv[1]]()
    )
)
