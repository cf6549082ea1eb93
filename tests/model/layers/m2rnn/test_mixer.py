"""The M²RNN layer: its formula in fp64, its parameters, and what its documents see of one another."""

import pytest
import torch
import torch.nn.functional as F

from model.layers.m2rnn.mixer import M2RNN, causal_conv

HIDDEN, HEADS, K, V = 24, 3, 4, 2
CU_SEQLENS = torch.tensor([0, 5, 6, 13]).int()


@pytest.fixture
def layer():
    torch.manual_seed(0)
    made = M2RNN(HIDDEN, HEADS, K, V).double()
    for parameter in made.parameters():  # off their special initial values
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


@pytest.fixture
def hidden():
    return torch.randn(13, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def document_by_the_formula(m, x):
    """One document [L, hidden] through the layer, step by step."""
    q, k, v, g = (x @ m.in_proj.weight.T).split([K, K, HEADS * V, HEADS * V], dim=1)
    forget = x @ m.forget_proj.weight.T
    mixed = torch.cat([q, k, v], dim=1)
    convolved = F.conv1d(F.pad(mixed.T, (3, 0))[None], m.conv_weight[:, None], m.conv_bias, groups=mixed.shape[1])[0].T
    q, k, v = F.silu(convolved).split([K, K, HEADS * V], dim=1)
    y = []
    for n in range(HEADS):
        h = torch.zeros(K, V, dtype=x.dtype)
        for t in range(len(x)):
            v_t = v[t, n * V : (n + 1) * V]
            f = torch.exp(-torch.exp(m.A_log[n]) * F.softplus(forget[t, n] + m.dt_bias[n]))
            h = f * h + (1 - f) * torch.tanh(h @ m.W[n] + torch.outer(k[t], v_t))
            y.append(q[t] @ h + m.D[n] * v_t)
    y = torch.stack(y).view(HEADS, len(x), V).transpose(0, 1).flatten(1) * F.silu(g)
    y = y * (y.square().mean(1, keepdim=True) + 1e-5).rsqrt() * m.norm.weight
    return y @ m.out_proj.weight.T


def test_it_is_the_formula_document_by_document(layer, hidden):
    expected = torch.cat([document_by_the_formula(layer, x) for x in hidden.split([5, 1, 7])])
    torch.testing.assert_close(layer(hidden, CU_SEQLENS), expected, rtol=1e-10, atol=1e-12)


def test_nothing_crosses_a_document_nor_comes_from_the_future(layer, hidden):
    before = layer(hidden, CU_SEQLENS)
    for at in range(13):
        changed = hidden.clone()
        changed[at] += 1
        moved = (layer(changed, CU_SEQLENS) != before).any(dim=1).nonzero().flatten().tolist()
        end = next(int(e) for e in CU_SEQLENS if e > at)
        assert moved == list(range(at, end))


def test_every_parameter_has_a_gradient(hidden):
    layer = M2RNN(HIDDEN, HEADS, K, V).double()
    layer(hidden, CU_SEQLENS).square().sum().backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    assert bool(layer.in_proj.weight.grad.any(dim=1).all())  # q, k, v and gate, each channel of them
    assert bool(layer.forget_proj.weight.grad.any(dim=1).all())


@pytest.mark.parametrize(("hidden", "heads", "count"), [(3584, 44, 8_202_776), (4096, 51, 10_779_702)])
def test_parameters(hidden, heads, count):
    with torch.device("meta"):
        layer = M2RNN(hidden, heads)
    assert sum(p.numel() for p in layer.parameters()) == count


def test_initial_values_and_marks():
    torch.manual_seed(0)
    layer = M2RNN(3584, 44)
    A, dt = layer.A_log.detach().exp(), F.softplus(layer.dt_bias.detach())
    assert torch.equal(layer.W, torch.eye(16).expand(44, 16, 16)) and bool((layer.D == 1).all())
    assert 1 <= A.min() < 4 and 13 < A.max() <= 16.01
    assert 0.999e-3 < dt.min() < 3e-3 and 3e-2 < dt.max() < 1.001e-1  # 44 draws spread over both decades
    marked = {name for name, p in layer.named_parameters() if getattr(p, "_keep_fp32", False)}
    assert marked == {"A_log", "dt_bias", "D"}
    assert marked | {"W"} == {name for name, p in layer.named_parameters() if getattr(p, "_no_weight_decay", False)}


def test_bf16_with_fp32_parameters_kept_is_near_fp64(layer, hidden):
    exact = layer(hidden, CU_SEQLENS)
    for parameter in layer.parameters():
        parameter.data = parameter.data.to(torch.float32 if hasattr(parameter, "_keep_fp32") else torch.bfloat16)
    out = layer(hidden.bfloat16(), CU_SEQLENS)
    assert out.dtype == torch.bfloat16
    assert (out - exact).norm() / exact.norm() < 0.03


def test_a_layer_materialised_from_the_meta_device_starts_as_any_other():
    with torch.device("meta"):
        layer = M2RNN(HIDDEN, HEADS, K, V)
    layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        parameter.data.fill_(float("nan"))
    layer.reset_parameters()
    assert all(bool(p.isfinite().all()) for p in layer.parameters())


def test_convolution_is_torchs_within_a_document():
    rng = torch.Generator().manual_seed(2)
    x, weight = torch.randn(9, 5, generator=rng).double(), torch.randn(5, 4, generator=rng).double()
    expected = F.conv1d(F.pad(x.T, (3, 0))[None], weight[:, None], groups=5)[0].T
    torch.testing.assert_close(causal_conv(x, weight, torch.zeros(5).double(), torch.arange(9)), expected)
