"""Weight gradients added by their product: which layers, what they leave, and when they do not."""

import pytest
import tiny

pytestmark = pytest.mark.upstream


def _on_cpu():
    """The product of Apex's extension in torch's terms."""
    from types import SimpleNamespace

    from megatron.core.tensor_parallel import layers

    layers.fused_weight_gradient_mlp_cuda = SimpleNamespace(
        wgrad_gemm_accum_fp32=lambda x, grad, main: main.add_(grad.float().T @ x.float())
    )
    layers._grad_accum_fusion_available = True


def _grown(layer, weight, call, *shape):
    """(error of the input's gradient, error of what the fp32 gradient grew by, whether it is marked) for a layer."""
    import torch

    x = torch.randn(*shape, weight.shape[1]).bfloat16().requires_grad_()
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(weight.shape), False
    y = call(layer, x)
    dy = torch.randn(y.shape).to(y)
    y.backward(dy)
    flat = dy.double().flatten(0, -2)
    error = tiny.error(x.grad, dy.double() @ weight.detach().double())
    return (
        error,
        tiny.error(weight.main_grad - 1, flat.T @ x.detach().double().flatten(0, -2)),
        weight.grad_added_to_main_grad,
    )


def torchs(*shape):
    import torch
    from torch import nn

    from model.layers.linear import wgrad

    _on_cpu()
    layer = nn.Linear(8, 6, bias=False, dtype=torch.bfloat16)
    wgrad.enable(nn.Sequential(layer))
    return _grown(layer, layer.weight, lambda layer, x: layer(x), *shape)


def megatrons(*shape):
    import copy

    import torch
    from megatron.core.tensor_parallel import ColumnParallelLinear

    _on_cpu()
    config = copy.copy(tiny.model().config)
    config.gradient_accumulation_fusion, config.params_dtype = True, torch.bfloat16
    layer = ColumnParallelLinear(8, 6, config=config, init_method=torch.nn.init.normal_, bias=False)
    return _grown(layer, layer.weight, lambda layer, x: layer(x)[0], *shape)


def left_alone():
    """Gradients that autograd keeps: of an fp32 layer, of one with a bias, of one that is not wrapped."""
    import torch
    from torch import nn

    from model.layers.linear import wgrad

    _on_cpu()
    fp32, biased, alone = nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
    biased, alone = biased.bfloat16(), alone.bfloat16()
    results = []
    for layer in (fp32, biased, alone):
        wgrad.enable(layer)
        if layer is not alone:
            layer.weight.main_grad = torch.zeros(4, 4)
        y = layer(torch.ones(2, 4, dtype=layer.weight.dtype))
        assert layer is not biased or torch.equal(y, nn.functional.linear(y * 0 + 1, layer.weight, layer.bias))
        y.sum().backward()
        results.append(
            (layer.weight.grad is not None, float(getattr(layer.weight, "main_grad", torch.zeros(1)).abs().sum()))
        )
    return results


def taken():
    """Names of the linear layers of a whole model that ``enable`` reaches, and of those with Megatron's own option."""
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    from model.layers.linear import wgrad

    model = tiny.fresh()
    wgrad.enable(model)
    ours = [name for name, module in model.named_modules() if isinstance(module, wgrad.Linear) and module.accumulates]
    theirs = [n for n, module in model.named_modules() if isinstance(module, ColumnParallelLinear | RowParallelLinear)]
    return ours, theirs


@pytest.mark.parametrize("shape", [(5, 2), (10,)])  # of tokens
@pytest.mark.parametrize("kind", [torchs, megatrons])
def test_the_product_adds_to_the_fp32_gradient(megatron, kind, shape):
    inputs, weights, marked = megatron.call(kind, *shape)
    assert inputs < 1e-2
    assert weights < 1e-6  # no rounding to bf16 on the way
    assert marked


def test_what_has_no_fp32_gradient_or_needs_none_is_left_to_autograd(megatron):
    assert megatron.call(left_alone) == [(True, 0.0)] * 3


def test_every_projection_is_one_or_the_other(megatron):
    ours, theirs = megatron.call(taken)
    for part in ("mixer.mamba.in_proj", "mixer.in_proj", "indexer.linear_wk", "ngram.projection"):
        assert any(part in name for name in ours), part
    for part in ("linear_q_down_proj", "linear_proj", "eh_proj", "output_layer"):
        assert any(part in name for name in theirs), part
