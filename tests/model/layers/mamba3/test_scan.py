"""The scan by blocks: on a CPU against fp64, and compiled for a GPU that is not here."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from mamba3_cases import tree_with
from scripted import run

from model.kinds.recurrent.mamba3 import HOPPER
from model.patched import seams

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@needs_triton
@pytest.mark.long
def test_every_gradient_is_the_references():
    found = run("interpreted_scan.py", TRITON_INTERPRET="1")
    for errors in found:
        assert {name: error for name, error in errors.items() if not error < 3e-6} == {}
    assert [len(errors) for errors in found] == [15, 15, 15]  # with the output


@pytest.mark.long
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
    with pytest.raises(ValueError, match="--path mamba3=tilelang_rows"):
        run_forward(*[None] * 16, **options, return_state=True)


@needs_triton
@pytest.mark.upstream
@pytest.mark.parametrize(("pack", "by_upstream"), [(42, ("combined", 16)), (53, ("parallel", 64))])
def test_both_passes_are_ours_whether_pack_53_is_there_and_upstreams_function_is_left_alone(
    pack, by_upstream, monkeypatch
):
    from model.layers.mamba3 import scan

    tree = tree_with(pack)
    monkeypatch.syspath_prepend(tree)
    monkeypatch.setattr(seams, "_verified", set())
    scope = {  # its module imports TileLang
        "torch": torch,
        "angle_dt_fwd": lambda *_, chunk_size, **__: (chunk_size, None),
        "angle_dt_bwd": lambda *_, chunk_size, **__: (chunk_size, "", None),
        "compute_dacs_segsum_triton": lambda *_: ("theirs", None, None),
        "mamba_mimo_forward": lambda *given, **_: (("forward", *given[10:12]), None, None),
        "mamba_mimo_bwd_combined": lambda *_: ["combined"] * 14,
        "can_run_parallel": lambda *_: True,
        "mamba_mimo_bwd_parallel": lambda *_: ["parallel"] * 14,
        "ANGLE_CHUNK_SIZE": 64,
    }
    exec("from __future__ import annotations\n" + seams.source(HOPPER.upstream, [tree]), scope)
    exec("def mamba3_mimo(*args):\n    return _Mamba3Function.apply(*args)", scope)
    before = dict(scope)
    monkeypatch.setattr(scan, "decay_sums", lambda *_: ("ours", None, None))
    monkeypatch.setattr(scan, "mimo_backward", lambda *given, by: [f"{given[11]} {by.fold}"] * 14)
    by = scan.Launches(lambda *given, **_: (("hopper", *given[10:12]), None, None), None, None, "hopper")
    ours = scan.by_blocks(scope["mamba3_mimo"], by).__globals__["_Mamba3Function"]
    assert passes(ours) == (("hopper", scan.ANGLES, "ours"), "ours hopper", scan.ANGLES)
    assert passes(scope["_Mamba3Function"]) == (("forward", 16, "theirs"), *by_upstream)
    assert issubclass(ours, scope["_Mamba3Function"]) and scope == before


def passes(function):
    """What its forward pass returns, its backward pass as the gradient of Q, and as that of the angles."""
    ctx = SimpleNamespace()
    ctx.save_for_backward = lambda *kept: setattr(ctx, "saved_tensors", kept)
    out = function.forward(ctx, *[torch.zeros(1)] * 14, 16, 4, torch.float32, False, None)
    grads = function.backward(ctx, torch.zeros(1))
    return out, grads[0], grads[11]
