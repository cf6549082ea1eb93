"""Errors planted in the network that is trained, and what the table of ``model.align`` then says; for a worker only."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from contextlib import contextmanager

import torch
from torch.nn.functional import silu

from model.families.deepseek_v4 import SIZES, Size
from model.kinds import catalogue
from model.kinds.run import Run

ROOM = "model.layers.deepseek_v4"
ANEW = (ROOM, "model.step.deepseek_v4", "model.alignment.deepseek_v4")  # what has names of the room
FELT, SEED, TOKENS = 1, 5, 51  # a draw whose constants are felt and that has no tie


class Edited(importlib.abc.MetaPathFinder):
    """Modules whose text is changed: {module: [(old, new)]}, each old found once."""

    def __init__(self, edits):
        self.edits = edits

    def find_spec(self, name, path=None, target=None):
        if name not in self.edits:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin, self.edits[name])
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name, path, edits):
        super().__init__(name, path)
        self.edits = edits

    def get_code(self, fullname):
        text = self.get_data(self.path).decode()
        for old, new in self.edits:
            assert text.count(old) == 1, (fullname, old)
            text = text.replace(old, new)
        return compile(text, self.path, "exec")


@contextmanager
def planted(edits):
    """The room imported anew with ``edits``, (module under it, or from "model." on, old, new); then the former one."""
    texts = {}
    for module, old, new in edits:
        texts.setdefault(module if module.startswith("model.") else f"{ROOM}.{module}", []).append((old, new))
    finder = Edited(texts)
    former = {name: module for name, module in sys.modules.items() if name.startswith(ANEW)}
    for name in former:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(ANEW)]:
            del sys.modules[name]
        sys.modules.update(former)
        for name in ANEW:  # `from model.step import deepseek_v4` asks the package
            package, _, module = name.rpartition(".")
            if name in former:
                setattr(sys.modules[package], module, former[name])


def swiglu(how, clamp):
    """What a gated expert makes of [gate | up]."""

    def found(gate_up):
        gate, up = gate_up.chunk(2, -1)
        return {
            "after the product": lambda: (silu(gate) * up).clamp(-clamp, clamp),
            "the gate from below": lambda: silu(gate.clamp(-clamp, clamp)) * up.clamp(-clamp, clamp),
            "never": lambda: silu(gate) * up,
        }[how]()

    return found


def clamped(mlp, how, routed=True):
    """Megatron's experts of a layer with another clamp: its MLP is not the room's, and is changed as it is built."""
    made = swiglu(how, mlp.config.activation_func_clamp_value)

    def shared(hidden):
        return mlp.shared_experts.linear_fc2(made(mlp.shared_experts.linear_fc1(hidden)[0]))[0]

    def forward_of(expert):
        def forward(hidden, per_token_scale=None):
            inner = made(expert.linear_fc1(hidden)[0])
            return expert.linear_fc2((inner * per_token_scale.unsqueeze(-1)).to(hidden.dtype))

        return forward

    mlp.shared_experts.forward = shared
    for expert in mlp.experts.local_experts if routed else ():
        expert.forward = forward_of(expert)


def sized(changed):
    """``v4_tiny`` with other values of its fields, {("attention", "window"): 3}."""
    told = SIZES["v4_tiny"].model_dump()
    for (*folders, last), value in changed.items():
        at = told
        for folder in folders:
            at = at[folder]
        at[last] = value
    return Size.model_validate(told)


KEPT = {}


def once(function, *of):
    """``function``, of which an error in the room changes nothing: called once for each draw, which ``of`` tells."""

    def found(*given):
        key = function.__name__, *of
        if key not in KEPT:
            KEPT[key] = function(*given)
        return KEPT[key]

    return found


def table(edits=(), changed=None, variant=FELT, seed=SEED):
    """(layer, module, kind, against) of the first row that does not hold, None where all do; the verdict's text; and
    whether every row was compared."""
    torch.set_num_threads(1)
    from model.alignment import aligned
    from model.alignment import table as tables

    run = Run(bf16=False, on_cpu=True)
    with planted(edits):
        drawn = importlib.import_module("model.alignment.deepseek_v4.drawn")
        # a wrong constant is the network's alone: its first row is of the public model, which has its own
        drawn.exact, drawn.weights = once(drawn.exact, variant, seed), once(drawn.weights, seed)
        drawn.public.said = once(drawn.public.said, variant, seed)
        made = aligned.reference(sized(changed or {}), "transformers", TOKENS)
        chosen = catalogue.choose(made.size, run)
        made.variants, aligned.TRIES = 1, 1  # an error may make ties, which more draws would have too
        found = aligned.drawn(
            made, "v4_tiny", "transformers", seed, 1, TOKENS, lambda _, at: made.rows(variant, at, run, chosen)
        )
    first = found.first
    place = first and (first.layer, first.module, first.kind, first.against)
    return place, tables.verdict(found), found.draws
