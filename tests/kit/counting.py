"""A toy module in torch, what a reproducer calls of it, and the census of these calls."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from reproducers.probe.arm.census import UNBOUND, public
from reproducers.probe.arm.census.again import Again
from reproducers.probe.arm.census.calls import Calls
from reproducers.record.receipt import Facts

SOURCE = '''"""Sums of rows."""

import logging
import warnings

import torch

KEPT = {}
logger = logging.getLogger(__name__)


def sums(x, bounds, scale=1.0, *, whole=True):
    """The sum of each row up to its bound."""
    inside = torch.arange(x.shape[-1], device=x.device) < bounds[:, None]
    return torch.where(inside, x, 0.0).sum(-1) * scale


class Square(torch.autograd.Function):
    """x * x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Layer(torch.nn.Module):
    """A scaled square that counts its calls."""

    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.weight.sharded = True
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        """x of [..., size]."""
        return Square.apply(x) * self.weight


def _private(x):
    return x


def asks(module):
    """Whether a module has what is private."""
    return hasattr(module, "_private")
'''


def module(folder: Path, source: str, name: str = "counted") -> ModuleType:
    """``source`` imported anew from its own file in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(source)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = before


def census(folder: Path, source: str, use: Callable[[Any], object], wanted: Facts | None = None) -> Facts:
    """The facts of what ``use`` calls of the module, made again as in a census arm; ``wanted``: those of another."""
    calls = Calls(folder, ["counted.py"], wanted)
    before, _ = sys.gettrace(), calls.start()
    try:
        toy = module(folder, source)
        classes = public.class_state(toy)
        use(toy)
    finally:
        calls.stop()
        sys.settrace(before)
    facts: Facts = {call.key: call.facts for call in calls.kept.values()}
    exported = public.exported(folder, ["counted.py"])["counted.py"]
    found = {UNBOUND: public.unbound(folder / "counted.py", toy)}
    found |= public.facts(toy, exported, classes, wanted is not None)
    facts["counted.py"] = found | calls.imports["counted.py"]
    facts["sources"] = public.private(folder, ["counted.py"])
    ways = dict[str, Again]()
    for call in [call for call in calls.kept.values() if call.target is not None]:
        again = ways[call.key] = Again(call, folder, "cpu", None if wanted is None else set(wanted.get(call.key, {})))
        again.ask()
    while live := [key for key, again in ways.items() if again.left]:
        key = min(live, key=lambda one: ways[one].turn)
        facts[key] |= ways[key].next()
    return facts
