"""The backward pass by blocks: by Triton's interpreter against fp64, and compiled for a GPU that is not here."""

import importlib.util
import sys

import pytest
import torch
from mamba3_cases import upstream_tree
from scripted import run

from model.kinds.mamba3 import BLOCKS
from model.patched.seams import source

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@needs_triton
@pytest.mark.long
def test_every_gradient_is_the_references():
    found = run("interpreted_scan.py", TRITON_INTERPRET="1")
    for errors in found:
        assert {name: error for name, error in errors.items() if not error < 3e-6} == {}
    assert [len(errors) for errors in found] == [14, 14, 15, 15, 15]  # Hopper's have a forward pass, too


@needs_triton
def test_kernels_compile_for_hopper_and_fit_its_registers(tmp_path):
    found = run("compiled_scan.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    fits = {"hopper mimo_forward 0": 1024, "hopper mimo_backward 0": 512}  # most of it before loops over blocks
    assert {name: of["spilled"] for name, of in found.items() if of["spilled"] > fits.get(name, 256)} == {}
    multiplying = {name for name, of in found.items() if of["mma"]}
    assert multiplying == {
        name for name in found if any(one in name for one in ("states", "backward", "forward", "mimo_fold 0"))
    }
    assert len([name for name in found if name.startswith("hopper")]) == 5


@needs_triton
def test_hoppers_forward_pass_has_no_state_to_return():
    from model.layers.mamba3.hopper.forward import run_forward

    options = {"chunk_size": 16, "rotary_dim_divisor": 4, "dtype": torch.bfloat16}
    with pytest.raises(ValueError, match="--path mamba3=blocks_rows"):
        run_forward(*[None] * 16, **options, return_state=True)


@needs_triton
@pytest.mark.upstream
def test_upstreams_function_is_left_alone():
    from model.layers.mamba3 import scan

    upstream_tree()
    scope = dict.fromkeys(("mamba_mimo_bwd_combined", "compute_dacs_segsum_triton"))
    scope |= {"torch": torch, "angle_dt_fwd": dict, "angle_dt_bwd": dict}  # its module imports TileLang
    exec("from __future__ import annotations\n" + source(BLOCKS.upstream, sys.path), scope)
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
