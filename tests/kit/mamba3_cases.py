"""Random problems for the Mamba-3 scan, and mamba-ssm's tree for the tests that need upstream's code."""

import importlib.util
import math
import sys

import pytest
import torch

from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import load_packs
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

AXIS = {"ADT": 2, "DT": 2, "Trap": 2} | dict.fromkeys(("Q", "K", "V", "Z", "Angles"), 1)  # where the steps are


def problem(length, *, batch=1, heads=4, groups=2, state=8, width=4, rank=2, divisor=4, dtype=torch.float64, seed=0):
    """Leaves for ``mamba3_mimo_reference`` in ``dtype``, by its argument names; steps near 0.5, decays near 0.4."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = {name: random(batch, length, rank, groups, state) for name in ("Q", "K")}  # [B, S, R, G, N]
    x |= {name: random(batch, length, heads, width) for name in ("V", "Z")}  # [B, S, H, P]
    x |= {name: random(heads, rank, state) for name in ("Q_bias", "K_bias")}  # [H, R, N]
    x |= {name: random(heads, rank, width) for name in ("MIMO_V", "MIMO_Z", "MIMO_Out")}  # [H, R, P]
    x |= {"Trap": random(batch, heads, length), "DT": random(batch, heads, length).sigmoid()}  # [B, H, S]
    x |= {"ADT": -random(batch, heads, length).abs(), "D": random(heads)}
    x["Angles"] = random(batch, length, heads, state // divisor)
    return {name: value.to(dtype).requires_grad_() for name, value in x.items()}


def bounds(*cuts):
    """cu_seqlens: int32 [documents + 1]."""
    return torch.tensor(cuts, dtype=torch.int32)


def alone(x, low, high):
    """The part of a packed ``problem`` between two cuts, as a problem of its own."""
    return {name: v.narrow(AXIS[name], low, high - low) if name in AXIS else v for name, v in x.items()}


def joined(*parts):
    """The inverse of ``alone``; parameters are the first part's."""
    return {n: torch.cat([part[n] for part in parts], AXIS[n]) if n in AXIS else v for n, v in parts[0].items()}


def error(got, want):
    """Relative error norm in fp64 (a gradient that vanishes counts as one of norm 1e-3); infinite for a wrong shape."""
    if got.shape != want.shape:
        return math.inf
    got, want = got.detach().double(), want.detach().double()
    return ((got - want).norm() / want.norm().clamp_min(1e-3)).item()


def upstream_tree():
    """Put mamba-ssm on the import path (the installed one, else the store's); skips the test where there is neither."""
    if "mamba_ssm" not in sys.modules and not importlib.util.find_spec("mamba_ssm"):
        sys.path.append(tree_with(42))  # without extensions


def tree_with(number):
    """The path of mamba-ssm's tree with that pack's patch alone; skips the test where the store has none."""
    pack, store = next(pack for pack in load_packs() if pack.number == number), Store()
    try:
        tree = pins.pin_tree(store, pack, pack.pins["live"])
        strip = patching.strip_for(tree.path, pack.upstream.source_root)
        return str(patching.patched_tree(store, tree, pack.patch, strip, pack.number).path)
    except (PatchlaneError, OSError) as reason:
        pytest.skip(f"the store has no mamba-ssm: {reason}")
