"""Run by test_kernels in a process of its own: DeepSeek-V4's kernels under Triton's interpreter against fp64.

Prints one JSON object: {"cases": {case: errors}}, of the named ones or of all, {"installed": {path: modules}}, and,
where none is named, {"network": {name: how far}}; exits 77 where there is no interpreter.
"""

# ruff: noqa: E402 - what follows imports triton

import json
import sys

import interpreted
import torch

interpreted.begin()

import v4_kernels_cases as cases
import v4_model as v4

from model.layers.common.norm import rms_norm
from model.layers.deepseek_v4.hybrid.kernels import indexer, install

indexer.SCORES = 300  # numbers at a time, so that a row is of several parts
SIZES = {
    "a window": ("attended", cases.lengths(1, 30), 3, 16, 6, 0, 0, 8),
    "a window, not turned": ("attended", [40], 17, 16, 50, 0, 0, 0),
    "all entries": ("attended", cases.lengths(2, 30), 3, 16, 6, 4, 0, 8),
    "chosen entries": ("attended", cases.lengths(3, 40), 5, 16, 6, 4, 3, 16),
    "few chosen entries": ("attended", [21, 0, 1, 18], 5, 16, 6, 4, 3, 16),
    "more entries than a product has": ("attended", [145], 2, 16, 9, 2, 70, 8),
    "a norm": ("normed", (5, 5000), True, 0),
    "a norm that is turned": ("normed", (50, 24), True, 8),
    "heads": ("normed", (7, 3, 24), False, 8),
    "many rows": ("normed", (2000, 16), True, 16),
    "four streams": ("around", 37, 4, 40, 20),
    "three streams": ("around", 5, 3, 24, 2),
    "a head": ("around", 19, 4, 40, 0),
    "an indexer": ("scored", cases.lengths(4, 40), 5, 8, 4, 3),
    "an indexer of few": ("scored", [21, 0, 1, 18], 5, 8, 4, 3),
    "an indexer without windows": ("scored", [3, 2], 3, 16, 4, 3),
    "overlapping windows": ("pooled", cases.lengths(5, 30), 12, 4, True),
    "windows": ("pooled", [40, 17, 3, 33], 20, 16, False),
    "gates": ("gated", 9, 12, 1.5),
}


def network(kernels):
    """A whole network's outputs, losses and gradients."""
    c = v4.Config()
    tokens, cu = v4.row([21, 1, 0, 9], c)
    model = v4.fill(v4.Whole(c), 3)
    for name in ("sliding", "csa", "hca", "streams", "norms") if kernels else ():
        getattr(install, name)(model)
    said = model(tokens, cu, index_loss=True)
    losses = v4.losses(said, tokens, cu, c)
    sum(losses.values()).backward()
    return {"logits": said["logits"], **losses, **{name: p.grad for name, p in model.named_parameters()}}


def installed():
    """{what is installed: which kinds of modules then have kernels, attention by its ratio and whether it chooses}."""

    def held(model):
        for module in model.modules():
            if getattr(module, "kernels", None) is not None or getattr(module, "by", rms_norm) is not rms_norm:
                shape = getattr(module, "shape", None)
                yield [type(module).__name__, *([] if shape is None else [shape.ratio, shape.index is not None])]

    found = {}
    for name in ("sliding", "csa", "hca", "streams", "norms"):
        model = v4.Whole(v4.Config())
        getattr(install, name)(model)
        found[name] = sorted(json.loads(one) for one in {json.dumps(one) for one in held(model)})
    return found


def apart():
    """{name: how far both networks are}, of gradients too small to compare as a part of a thousandth of the largest."""
    found, due = network(True), network(False)
    assert {name for name, x in found.items() if x is None} == {name for name, x in due.items() if x is None}
    least = 1e-3 * max(float(x.abs().max()) for x in due.values() if x is not None)
    return {
        name: float((x - due[name]).abs().max() / due[name].abs().max().clamp(min=least))
        for name, x in found.items()
        if x is not None
    }


wanted = sys.argv[1:] or SIZES
made = {name: cases.errors(SIZES[name][0], 0, "cpu", torch.float32, *SIZES[name][1:]) for name in wanted}
print(json.dumps({"cases": made, "installed": installed(), "network": {} if sys.argv[1:] else apart()}))
