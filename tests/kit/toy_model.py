"""The smallest model with the parts that coverage looks for, its layers calling the toy upstream."""

import importlib
import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from model.patched.overlay import Overlay
from reproducers.record.origin import Origin
from reproducers.upstream import merging


class Calling(torch.autograd.Function):
    """Calls one function of the toy forward and another backward, and passes its input on."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_call = backward
        forward()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.backward_call()
        return grad * 2, None, None


class Layer(nn.Module):
    def __init__(self, number, forward, backward):
        super().__init__()
        self.layer_number, self.calls = number, (forward, backward)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, hidden_states):
        return self.weight * Calling.apply(hidden_states * self.weight, *self.calls), None


class Decoder(nn.Module):
    def __init__(self, layers, recompute):
        super().__init__()
        self.layers, self.recompute = nn.ModuleList(layers), recompute

    def forward(self, x):
        for layer in self.layers:
            if self.recompute:
                x, _ = checkpoint(lambda h, layer=layer: layer(hidden_states=h), x, use_reentrant=False)
            else:
                x, _ = layer(hidden_states=x)
        return x


class Stage(nn.Module):
    """Two layers, a head and a loss; ``calls``: (forward, backward) of each layer."""

    pre_process = post_process = True

    def __init__(self, calls, recompute=False, entrance=lambda: None, loss=lambda: None):
        super().__init__()
        kinds = [SimpleNamespace(number=n, kind=kind) for n, kind in ((1, "dsa"), (2, "moe"))]
        self.config = SimpleNamespace(model_size=SimpleNamespace(layers=kinds))
        self.word = nn.Parameter(torch.ones(3))
        self.decoder = Decoder([Layer(n, *pair) for n, pair in enumerate(calls, 1)], recompute)
        self.output_layer = nn.Linear(3, 1)
        self.entrance, self.loss = entrance, loss

    def forward(self):
        self.entrance()
        found = self.output_layer(self.decoder(self.word * 1))
        self.loss()
        return found.sum()


class Wrapped(nn.Module):
    """As DDP and Float16Module wrap a stage."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self):
        return self.module()


def overlay_of(toy, pack, source):
    """An overlay whose only distribution is the toy with ``pack``'s patch."""
    pristine = toy.store.tree(
        "trees",
        "toy",
        Origin(kind="release", distribution="toyup", release="1.0"),
        lambda root: [write(root, *file) for file in source.items()],
    )
    applied = merging.apply_alone(pristine, pack)
    tree = merging.merge(toy.store, pristine, [applied])
    return Overlay("cpu", {"toyup": tree}, {"toyup": pristine}, [], {"toyup": [applied]})


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def imported(found, monkeypatch):
    """``toyup.core`` of the overlay's merged tree."""
    for name in ("toyup", "toyup.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(found.trees["toyup"].path))
    return importlib.import_module("toyup.core")
