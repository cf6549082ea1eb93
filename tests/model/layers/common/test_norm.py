"""The norm by Transformer Engine's kernels, with torch's in their place: what goes to them and comes back.

The kernels themselves are tested in tests/model/journeys/test_gpu_paths.py.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from model.kinds.path import Choice
from model.layers.common import fp32
from model.layers.common.norm import ResidualNorm, RMSNorm, WideRMSNorm, by_transformer_engine, rms_norm


def forward(x, weight, eps, out, quantizer, dtype, margin, zero_centred):
    assert x.dim() == 2 and x.is_contiguous()
    assert (out, quantizer, dtype, margin, zero_centred) == (None, None, "bf16", 0, False)
    scales = (x.float().square().mean(-1) + eps).rsqrt()
    return (x * scales[:, None] * weight).to(x.dtype), None, scales


def backward(above, x, scales, weight, margin, zero_centred):
    assert above.shape == x.shape and above.is_contiguous() and (margin, zero_centred) == (0, False)
    normal, up = x.float() * scales[:, None], above.float() * weight
    inputs = (up - normal * (up * normal).mean(-1, keepdim=True)) * scales[:, None]
    return inputs.to(x.dtype), (above * normal).sum(0).to(weight.dtype)


def backward_add(above, x, residual, scales, *rest):
    assert residual.shape == x.shape and residual.is_contiguous()
    inputs, weights = backward(above.float(), x.float(), scales, *rest)
    return (inputs + residual).to(x.dtype), weights


@pytest.fixture
def torchs(monkeypatch):
    """Transformer Engine's two modules with torch's arithmetic."""
    made = {name: ModuleType(name) for name in ("transformer_engine_torch", "transformer_engine.pytorch.constants")}
    made["transformer_engine_torch"].rmsnorm_fwd = forward
    made["transformer_engine_torch"].rmsnorm_bwd = backward
    made["transformer_engine_torch"].rmsnorm_bwd_add = backward_add
    made["transformer_engine.pytorch.constants"].TE_DType = {torch.bfloat16: "bf16"}
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        made[name] = ModuleType(name)
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("shape", [(6, 8), (5, 1, 8), (2, 3, 2, 8)])
def test_results_and_gradients_are_torchs(torchs, shape, used):
    """``used``: whether the norm and what goes around it get a gradient."""
    torch.manual_seed(0)
    x, weight = torch.randn(*shape[:-1], 16).bfloat16()[..., ::2], torch.randn(8).bfloat16()
    above = [torch.randn(*shape[:-1], 16).bfloat16()[..., ::2] for _ in range(2)]
    found = []
    for run, to in ((by_transformer_engine, torch.bfloat16), (torch_norm, torch.float64)):
        leaves = [t.to(to).requires_grad_() for t in (x, weight)]
        outs = run(*leaves, 1e-5)
        pairs = [(y, up.to(to)) for y, up, one in zip(outs, above, used, strict=True) if one]
        ways, ups = zip(*pairs, strict=True)
        found.append([*outs, *torch.autograd.grad(ways, leaves, ups, allow_unused=True)])
    for ours, theirs in zip(*found, strict=True):
        if theirs is None:
            assert ours is None
            continue
        assert ours.shape == theirs.shape and ours.dtype == torch.bfloat16
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=2e-2)


def torch_norm(x, weight, eps):
    return torch.nn.functional.rms_norm(x, (8,), weight, eps), x


@pytest.mark.parametrize("kind", [RMSNorm, ResidualNorm])
@pytest.mark.parametrize("path", ["torch", "te"])
def test_a_layers_norm_by_its_path(torchs, monkeypatch, path, kind):
    config = SimpleNamespace(params_dtype=torch.bfloat16, model_paths={"norm": Choice(path, "")})
    called, name = [], "model.layers.common.norm.by_transformer_engine"
    monkeypatch.setattr(name, lambda *given: called.append(given) or (given[0], given[0]))
    out = kind(config, 8)(torch.ones(2, 8, dtype=torch.bfloat16))
    assert len(called) == (path == "te")
    assert isinstance(out, tuple) == (kind is ResidualNorm)


def test_the_wide_norm_is_the_formula_with_and_without_a_weight():
    x, weight = torch.randn(5, 7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    expected = x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(rms_norm(x, eps=0.1), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(rms_norm(x, weight, 0.1), expected * weight, rtol=0, atol=1e-15)


def test_the_wide_norm_multiplies_by_its_fp32_weight_before_it_rounds():
    norm = WideRMSNorm(64, 1e-3)
    assert fp32.kept(norm.weight) and bool((norm.weight == 1).all())
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    x = torch.randn(9, 64).bfloat16()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight.double()
    found = norm(x)
    assert found.dtype == torch.bfloat16
    assert (found == exact.bfloat16()).float().mean() > 0.99  # rounded twice, 26% of them would differ
    norm.reset_parameters()
    assert bool((norm.weight == 1).all())
