"""The mixer on a CPU: its parameters, its paths, and what no token may do to another."""

import itertools

import pytest
import torch
from mamba3_cases import bounds, error, upstream_tree

from model.layers.mamba3 import upstream as mamba3_upstream
from model.layers.mamba3.mixer import FP32, build_mamba3
from patchlane.base.errors import CannotTestHere

pytestmark = pytest.mark.upstream
CUTS = (0, 1, 9, 9, 30, 48)


@pytest.fixture(autouse=True)
def upstream():
    upstream_tree()


def small(seed=0, **options):
    torch.manual_seed(seed)
    shape = {"hidden": 32, "d_state": 16, "headdim": 8, "ngroups": 2, "rank": 2, "chunk": 8, "device": "cpu"}
    return build_mamba3(**shape | options)


def test_parameters_at_the_training_width():
    mixer = build_mamba3(3584, device="meta")
    h, inner, heads, n, groups, rank, width = 3584, 7168, 112, 128, 8, 4, 64
    formula = h * (2 * inner + 2 * n * groups * rank + 3 * heads + n // 4) + inner * h
    formula += 2 * heads * rank * n + 2 * n + 2 * heads + 3 * heads * rank * width
    assert sum(p.numel() for p in mixer.parameters()) == formula == 107_950_560


def test_gradients_reach_every_parameter():
    mixer, hidden = small(), torch.randn(48, 32, requires_grad=True)
    mixer(hidden, bounds(*CUTS)).square().sum().backward()
    dead = [n for n, p in mixer.named_parameters() if p.grad is None or not (p.grad.isfinite() & (p.grad != 0)).any()]
    assert dead == []
    assert (hidden.grad != 0).all()


def test_a_token_reaches_later_tokens_of_its_document_only():
    mixer, hidden = small(), torch.randn(48, 32)
    before = mixer(hidden, bounds(*CUTS))
    for token in (0, 5, 8, 9, 29, 47):
        changed = hidden.clone()
        changed[token] += 1
        moved = (mixer(changed, bounds(*CUTS)) - before).abs().amax(1) > 1e-5  # [T]; rounding stays under 1e-6
        end = next(cut for cut in CUTS if cut > token)
        assert moved[token], token
        assert not moved[:token].any() and not moved[end:].any(), token


def test_a_packed_document_is_what_it_is_alone():
    mixer, hidden = small(), torch.randn(48, 32)
    packed = mixer(hidden, bounds(*CUTS))
    for low, high in itertools.pairwise(CUTS):
        if low < high:
            assert error(packed[low:high], mixer(hidden[low:high], bounds(0, high - low))) < 1e-6


def test_padding_the_bounds_with_empty_documents_changes_nothing():
    mixer, hidden = small(), torch.randn(48, 32)
    assert torch.equal(mixer(hidden, bounds(*CUTS)), mixer(hidden, bounds(*CUTS, 48, 48, 48)))


def test_one_whole_document_takes_the_kernels_for_one_document(monkeypatch):
    mixer, seen = small(), []
    monkeypatch.setattr(mixer.mamba, "forward", lambda u, cu_seqlens: (seen.append(cu_seqlens), u)[1])
    for length, cuts in ((48, (0, 48)), (47, (0, 47)), (48, (0, 20, 48))):
        mixer(torch.zeros(length, 32), bounds(*cuts))
    assert [bounds is None for bounds in seen] == [True, False, False]


def test_the_fp32_contract():
    """A cast that honours the marks leaves exactly these in fp32, and the module still computes, in bf16."""
    exact, cast, hidden = small(), small(), torch.randn(48, 32)
    for parameter in cast.parameters():
        if not getattr(parameter, "_keep_fp32", False):
            parameter.data = parameter.data.bfloat16()
    kept = {name.removeprefix("mamba.") for name, p in cast.named_parameters() if p.dtype == torch.float32}
    assert kept == set(FP32)
    out = cast(hidden.bfloat16(), bounds(*CUTS))
    assert out.dtype == torch.bfloat16
    assert error(out, exact(hidden, bounds(*CUTS))) < 2e-2  # a few roundings of 2**-9
    born = small(dtype=torch.bfloat16).mamba.named_parameters()
    assert {name for name, p in born if p.dtype == torch.float32} == set(FP32)


def test_kernels_are_not_handed_parameters_that_a_cast_took(monkeypatch):
    monkeypatch.setattr(mamba3_upstream, "kernels_missing", lambda *_: "")
    monkeypatch.setattr(mamba3_upstream.import_mamba3(), mamba3_upstream.KERNEL, object())
    mixer = small(path="tilelang").bfloat16()
    with pytest.raises(TypeError, match=r"dt_bias, (.|\n)*fix: .*packs/16_\w+/notes\.md"):
        mixer(torch.zeros(8, 32), bounds(0, 8))


def test_initial_step_sizes_are_in_range():
    step = torch.nn.functional.softplus(small(hidden=512, dt_min=0.002, dt_max=0.05).mamba.dt_bias)
    assert len(step) == 128
    assert 0.002 * (1 - 1e-4) <= step.min() < 0.004 < 0.03 < step.max() <= 0.05 * (1 + 1e-4)


def test_decays_have_a_floor():
    """A floor of 40 at steps over 0.5 leaves nothing of a token (exp(-20)) two steps later."""
    hidden, changed = torch.randn(48, 32), torch.randn(48, 32)
    changed[1:] = hidden[1:]
    moved = []
    for floor in (1e-4, 40.0):
        mixer = small(A_floor=floor, dt_min=0.5, dt_max=1.0)
        moved.append((mixer(changed, bounds(0, 48)) - mixer(hidden, bounds(0, 48)))[2:].abs().max())
    assert moved[0] > 1e-4
    assert moved[1] < 1e-6


def test_kernels_that_cannot_run_are_refused_when_the_mixer_is_built(monkeypatch):
    with pytest.raises(CannotTestHere) as caught:
        small(path="tilelang")
    assert "mamba3=torch" in caught.value.remedy
    monkeypatch.setattr(mamba3_upstream.import_mamba3(), mamba3_upstream.KERNEL, None)
    with pytest.raises(CannotTestHere, match=r"tilelang==0\.1\.8"):
        small(path="tilelang_rows", device="cuda")


@pytest.mark.parametrize(
    ("length", "cuts"),
    [
        ((48,), bounds(0, 48)),
        ((48, 32), bounds(0, 40)),
        ((48, 32), bounds(0, 30, 20, 48)),
        ((0, 32), bounds(0)),
        ((48, 32), torch.tensor([0, 48])),
        ((48, 32), bounds(1, 48)),
    ],
)
def test_bounds_that_do_not_fit_are_refused(length, cuts):
    with pytest.raises(ValueError):
        small()(torch.zeros(length), cuts)


def test_dimensions_that_do_not_fit_are_refused():
    for options in ({"headdim": 24}, {"ngroups": 3}):
        with pytest.raises(ValueError, match=r"\b24\b|\b3 groups"):
            small(**options)
