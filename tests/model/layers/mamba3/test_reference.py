"""The chunked scan against the sequential one in fp64, and what no token may do to another."""

import itertools
import math

import pytest
import siso_sequential
import torch
from mamba3_cases import alone, bounds, error, joined, problem
from mamba3_sequential import mamba3_mimo_sequential

from model.layers.mamba3.reference import mamba3_mimo_reference, mamba3_siso_reference

MANY = (0, 1, 9, 9, 20, 36, 37, 37)  # lengths 1, 8 (a chunk), 0, 11, 16, 1 and 0 at the end


def chunked(x, cuts=None, chunk=8, divisor=4, dtype=torch.float64, **options):
    packed = None if cuts is None else bounds(*cuts)
    return mamba3_mimo_reference(
        **x, chunk_size=chunk, rotary_dim_divisor=divisor, dtype=dtype, cu_seqlens=packed, **options
    )


@pytest.mark.parametrize(
    ("length", "cuts", "chunk", "options"),
    [
        (24, None, 8, {"batch": 2}),
        (21, None, 8, {"batch": 2, "groups": 1}),
        (37, MANY, 8, {"groups": 4, "rank": 3}),
        (37, MANY, 16, {"groups": 1, "divisor": 2}),
        (64, (0, 16, 33, 64), 16, {"rank": 4, "state": 16}),
        (5, None, 8, {"rank": 1, "heads": 2, "width": 3}),
        (1, (0, 1), 8, {}),
    ],
)
def test_values_and_gradients_are_those_of_the_recurrence(length, cuts, chunk, options):
    x, divisor = problem(length, **options), options.get("divisor", 4)
    got = chunked(x, cuts, chunk, divisor)
    want, _ = mamba3_mimo_sequential(**x, cu_seqlens=None if cuts is None else bounds(*cuts))
    assert error(got, want) < 1e-10
    weight = torch.randn(want.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = zip(*(torch.autograd.grad(y, list(x.values()), weight) for y in (got, want)), strict=True)
    assert {name: e for name, pair in zip(x, pairs, strict=True) if (e := error(*pair)) > 1e-10} == {}


@pytest.mark.parametrize("cuts", [None, MANY])
def test_final_state_is_that_of_the_recurrence(cuts):
    x = problem(37, batch=2 if cuts is None else 1)
    _, angle, state, key, value = chunked(x, cuts, return_state=True)
    _, want = mamba3_mimo_sequential(**x, cu_seqlens=None if cuts is None else bounds(*cuts))
    assert error(state, want) < 1e-10
    assert (angle >= 0).all() and (angle < 2 * math.pi).all() and (angle > math.pi).any()
    assert not (angle.requires_grad or state.requires_grad or key.requires_grad or value.requires_grad)
    if cuts is None:
        assert torch.equal(value, x["V"][:, -1])
        return
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        if low == high:
            assert not any(t[number].any() for t in (angle, state, key, value))
            continue
        for got, one in zip(
            (angle, state, key, value), chunked(alone(x, low, high), return_state=True)[1:], strict=True
        ):
            assert error(got[number], one[0]) < 1e-10


def test_the_chunk_size_does_not_change_the_value():
    x = problem(50)
    want = chunked(x, (0, 20, 50), chunk=8)
    assert max(error(chunked(x, (0, 20, 50), chunk=chunk), want) for chunk in (1, 13, 16, 64)) < 1e-12


def test_without_projection_gate_and_skip():
    x = problem(20, batch=2)
    ranks = chunked(x | {"MIMO_Out": None})  # [B, S, R, H, P]
    assert error((ranks * x["MIMO_Out"].transpose(0, 1)).sum(2), chunked(x)) < 1e-12
    gate = torch.nn.functional.silu(x["Z"].unsqueeze(2) * x["MIMO_Z"].transpose(0, 1))
    assert error(chunked(x | {"MIMO_Out": None, "Z": None, "MIMO_Z": None}) * gate, ranks) < 1e-12
    skip = x["D"][:, None] * x["V"].unsqueeze(2) * x["MIMO_V"].transpose(0, 1) * gate
    assert error(chunked(x | {"MIMO_Out": None, "D": None}) + skip, ranks) < 1e-12


def test_a_document_is_what_it_is_alone():
    """fp32, to its rounding (2**-24 a term), also at the end of a long stream where sums over all of it are big."""
    cuts = (0, 1500, 1501, 2000, 2048)
    x = problem(2048, dtype=torch.float32)
    packed = chunked(x, cuts, dtype=torch.float32)
    parts = [chunked(alone(x, low, high), dtype=torch.float32) for low, high in itertools.pairwise(cuts)]
    assert max(error(packed[:, a:b], one) for (a, b), one in zip(itertools.pairwise(cuts), parts, strict=True)) < 1e-6


@pytest.mark.parametrize("step", [0, 7, 8, 20, 35])
def test_a_step_reaches_later_steps_of_its_document_only(step):
    x = problem(37)
    changed = joined(alone(x, 0, step), alone(problem(37, seed=1), step, step + 1), alone(x, step + 1, 37))
    moved = (chunked(changed, MANY) - chunked(x, MANY)).abs().amax((0, 2, 3)) > 1e-9  # [S]
    end = next(cut for cut in MANY if cut > step)
    assert moved[step:end].all()
    assert not moved[:step].any()
    assert not moved[end:].any()


def test_precision_below_fp64():
    x = problem(256, heads=4, state=16, rank=4)
    want = chunked(x, (0, 100, 256))
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):  # in bf16 inputs and output round to 2**-9
        got = chunked({name: value.to(dtype) for name, value in x.items()}, (0, 100, 256), dtype=dtype)
        assert got.dtype == dtype
        assert error(got, want) < limit


def test_decays_that_underflow_leave_gradients_finite():
    x = problem(64, dtype=torch.float32)
    x["ADT"] = (x["ADT"].detach() * 400).requires_grad_()
    out = chunked(x, (0, 30, 64), dtype=torch.float32)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), list(x.values())))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 groups"):
        chunked(problem(8, groups=3))
    with pytest.raises(ValueError, match="batch 2"):
        chunked(problem(8, batch=2), (0, 8))
    with pytest.raises(ValueError, match="MIMO_Z"):
        chunked(problem(8) | {"MIMO_Z": None})


@pytest.mark.parametrize("bounds", [(0, siso_sequential.LENGTH), (0, 4, siso_sequential.LENGTH)])
@pytest.mark.parametrize("chunk", [4, 64])
def test_siso_is_the_recurrence(bounds, chunk):
    x = siso_sequential.inputs()
    packed = torch.tensor(bounds, dtype=torch.int32) if len(bounds) > 2 else None
    out = mamba3_siso_reference(**x, chunk_size=chunk, cu_seqlens=packed)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, siso_sequential.stepwise(x, bounds), rtol=1e-10, atol=1e-10)


def test_mimos_rotation_would_be_seen(monkeypatch):
    monkeypatch.setattr("model.layers.mamba3.reference._halves", lambda x: x)
    x = siso_sequential.inputs()
    assert (mamba3_siso_reference(**x) - siso_sequential.stepwise(x, (0, siso_sequential.LENGTH))).abs().max() > 1e-2


def test_siso_refuses_states():
    with pytest.raises(ValueError, match="decoding"):
        mamba3_siso_reference(**siso_sequential.inputs(), return_final_states=True)
