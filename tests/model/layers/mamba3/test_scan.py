"""The backward pass by blocks: by Triton's interpreter against fp64, and compiled for a GPU that is not here."""

import importlib.util
import sys
import weakref

import pytest
import torch
from mamba3_cases import upstream_tree
from scripted import run

from model.patched import seams
from model.patched.seams import source

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@needs_triton
def test_every_gradient_is_the_references():
    found = run("interpreted_scan.py", TRITON_INTERPRET="1")
    for errors in found:
        assert {name: error for name, error in errors.items() if not error < 3e-6} == {}
    assert [len(errors) for errors in found] == [14, 14, 15, 15, 15, 15]  # Hopper's have a forward pass, too


@needs_triton
def test_kernels_compile_for_hopper_and_fit_its_registers(tmp_path):
    found = run("compiled_scan.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    # four kinds of warps, most of it before their loops; the third's before its loops over blocks
    fits = {"hopper mimo_forward 0": 1024, "hopper mimo_forward 1": 1024, "hopper mimo_pipelined 0": 512}
    assert {name: of["spilled"] for name, of in found.items() if of["spilled"] > fits.get(name, 256)} == {}
    multiplying = {name for name, of in found.items() if of["mma"]}
    rooms = "states", "backward", "pipelined", "forward", "mimo_fold 0"
    only_turning = "hopper mimo_states 3"  # what makes no gradients of states
    assert multiplying == {name for name in found if any(one in name for one in rooms)} - {only_turning}
    assert len([name for name in found if name.startswith("hopper")]) == 10


@needs_triton
def test_hoppers_forward_pass_has_no_state_to_return():
    from model.layers.mamba3.hopper.forward import run_forward

    options = {"chunk_size": 16, "rotary_dim_divisor": 4, "dtype": torch.bfloat16}
    with pytest.raises(ValueError, match="--path mamba3=blocks_rows"):
        run_forward(*[None] * 16, **options, return_state=True)


KERNELS = ("mamba_mimo_forward", "mamba_mimo_bwd_combined", "compute_dacs_segsum_triton")
UPSTREAM = """
class _Mamba3Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        angle_dt_fwd(), compute_dacs_segsum_triton
        return mamba_mimo_forward(q)

    @staticmethod
    def backward(ctx, above):
        angle_dt_bwd(), compute_dacs_segsum_triton
        return mamba_mimo_bwd_combined(above)


def mamba3_mimo(q):
    return _Mamba3Function.apply(q)
"""


@needs_triton
def test_states_are_kept_for_one_backward_pass(monkeypatch):
    from model.layers.mamba3 import scan

    asked, found, made = [], [], []

    def forward(q):
        asked.append(scan.KEPT.get() is not None)
        if asked[-1]:
            made.append(weakref.ref(state := torch.ones(3)))
            scan.KEPT.get().append(state)
        return q * 2

    def backward(above, by):
        found.append(len(scan.KEPT.get() or []))
        return above * 2

    monkeypatch.setattr(scan, "mimo_backward", backward)
    monkeypatch.setattr(seams, "MAMBA3_BLOCKS", seams.rebound)  # what stands below is no upstream code
    scope = {"torch": torch, "angle_dt_fwd": dict, "angle_dt_bwd": dict} | dict.fromkeys(KERNELS)
    exec(UPSTREAM, scope)
    kernel = scan.by_blocks(scope["mamba3_mimo"], scan.TRITON._replace(forward=forward), keeps=True)
    leaf = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        kernel(leaf * 1)
    assert asked == [False]  # nothing will read them
    first, second = kernel(leaf), kernel(leaf)
    second.sum().backward(retain_graph=True)
    assert (found, [one() is None for one in made]) == ([1], [False, True])  # gone, though the graph is there
    second.sum().backward()
    first.sum().backward()
    assert (asked[1:], found, [one() is None for one in made]) == ([True, True], [1, 0, 1], [True, True])
    assert scan.KEPT.get() is None
    scan.by_blocks(scope["mamba3_mimo"], scan.TRITON._replace(forward=forward))(leaf)
    assert not asked[-1]


@needs_triton
@pytest.mark.upstream
def test_upstreams_function_is_left_alone():
    from model.layers.mamba3 import scan

    upstream_tree()
    scope = dict.fromkeys(("mamba_mimo_bwd_combined", "compute_dacs_segsum_triton"))
    scope |= {"torch": torch, "angle_dt_fwd": dict, "angle_dt_bwd": dict}  # its module imports TileLang
    exec("from __future__ import annotations\n" + source(seams.MAMBA3_BLOCKS.upstream, sys.path), scope)
    exec("def mamba3_mimo(*args):\n    return _Mamba3Function.apply(*args)", scope)
    theirs = scope["_Mamba3Function"]
    ours = scan.by_blocks(scope["mamba3_mimo"])
    mine = ours.__globals__["_Mamba3Function"]
    assert issubclass(mine, theirs)
    assert mine.forward.__globals__["compute_dacs_segsum_triton"] is None
    assert mine.forward.__globals__["angle_dt_fwd"](chunk_size=16, dt=1) == {"chunk_size": scan.ANGLES, "dt": 1}
    assert mine.backward.__globals__["angle_dt_bwd"](chunk_size=16, dt=1) == {"chunk_size": scan.ANGLES, "dt": 1}
    assert mine.backward.__globals__["mamba_mimo_bwd_combined"].func is scan.mimo_backward
    assert theirs.backward.__globals__["mamba_mimo_bwd_combined"] is None
    assert scope["_Mamba3Function"] is theirs
