"""Experts by torch's grouped product: against fp64, against Megatron's own, and where their weights lie."""

import pytest
import tiny
import torch
from gpu_cases import differences, random
from train_kit import checkpoints, copy, good, measured, train

pytestmark = pytest.mark.upstream
NUMBER = 2  # the first MoE layer
COUNTS = (5, 0, 1, 10)  # of rows by expert
COMMON = {"steps": 6, "evaluate_every": 100, "save_every": 3, "deterministic": True, "fp32": True}
GROUPED = {"path": "moe=grouped_mm"}


def exact(x, ends, weights):
    """What ``product`` computes, an expert at a time."""
    import torch

    first = [0, *ends.tolist()[:-1]]
    parts = [x[a:b] @ w.t() for a, b, w in zip(first, ends.tolist(), weights, strict=True)]
    return torch.cat(parts)


def errors(kind, apart):
    """Relative errors of the output, the inputs' gradient and the weights' against fp64, and whether the weights'
    went to ``main_grad``. ``apart``: weights that lie in memory as they come; else as in Megatron's buffers."""
    import torch

    from model.layers.experts import grouped

    torch.manual_seed(0)
    counts = torch.tensor(COUNTS)
    ends = counts.cumsum(0, dtype=torch.int32)
    x = torch.randn(int(ends[-1]), 16, requires_grad=True)
    memory, sums = torch.randn(len(COUNTS), 2, 24, 16), torch.ones(len(COUNTS), 2, 24, 16)
    weights = [torch.nn.Parameter(one.clone() if apart else one) for one in memory[:, 0]]
    for weight, place in zip(weights, sums[:, 0], strict=True):
        if kind == "accumulated":
            weight.main_grad = place.clone() if apart else place
    assert (grouped.stacked(weights) is None) == apart
    out = grouped.product(x, ends, weights, accumulates=kind == "accumulated")
    grad = torch.randn_like(out)
    out.backward(grad)
    x64 = x.detach().double().requires_grad_()
    weights64 = [weight.detach().double().requires_grad_() for weight in weights]
    want = exact(x64, ends, weights64)
    want.backward(grad.double())
    if kind == "accumulated":
        got = [weight.main_grad - 1 for weight in weights]
        marked = all(weight.grad_added_to_main_grad and weight.grad is not None for weight in weights)
    else:
        got, marked = [weight.grad for weight in weights], not hasattr(weights[0], "main_grad")
    untouched = bool((sums[:, 1] == 1).all())
    pairs = [(out, want), (x.grad, x64.grad), (torch.stack(got), torch.stack([w.grad for w in weights64]))]
    return [tiny.error(one, other) for one, other in pairs], marked and untouched


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("kind", ["returned", "accumulated"])
def test_products_and_gradients_are_each_experts(megatron, kind, apart):
    found, marked = megatron.call(errors, kind, apart)
    assert max(found) < 1e-6
    assert marked


def unused():
    """The gradient of the expert without rows, whatever a kernel leaves there."""
    import torch

    from model.layers.experts import grouped

    kept = torch.nn.functional.grouped_mm
    no_rows = (torch.arange(len(COUNTS)) == 1)[:, None, None]

    def planted(a, b, offs):
        found = kept(a, b, offs=offs)
        return torch.where(no_rows, torch.nan, found) if b.dim() == 2 else found

    torch.nn.functional.grouped_mm = planted
    try:
        ends = torch.tensor(COUNTS).cumsum(0, dtype=torch.int32)
        weights = [torch.nn.Parameter(torch.ones(24, 16)) for _ in COUNTS]
        grouped.product(torch.ones(int(ends[-1]), 16), ends, weights).sum().backward()
    finally:
        torch.nn.functional.grouped_mm = kept
    return [float(weight.grad.sum()) for weight in weights]


def test_an_expert_without_rows_has_a_gradient_of_0(megatron):
    assert megatron.call(unused) == [24 * 16 * count for count in COUNTS]


def uneven():
    """Of tensors in descending order, in two memories, and in memory that overlaps."""
    import torch

    from model.layers.experts import grouped

    memory = torch.zeros(3, 4)
    cases = [list(memory)[::-1], [memory[0], torch.zeros(4)], [memory[0], memory.view(-1)[2:6]], [memory[0], memory[1]]]
    return [grouped.stacked(case) is None for case in cases]


def test_what_does_not_lie_evenly_is_no_view(megatron):
    assert megatron.call(uneven) == [True, True, True, False]


def test_weights_and_gradients_are_used_where_they_lie(stack, text):
    found = stack.run("trained:stacks", str(text))
    assert found.code == 0, found.said
    assert found.value == [True] * 4


@pytest.mark.long
def test_a_run_is_that_of_megatrons_experts(stack, text, tmp_path):
    """Losses and norms, and a checkpoint of either goes on as the other."""
    good(train(stack, tmp_path / "one", text, **COMMON))
    good(train(stack, tmp_path / "grouped", text, **GROUPED, **COMMON))
    assert checkpoints(tmp_path / "one") == ["step_0000003", "step_0000006"]
    crossed = copy(tmp_path / "one", tmp_path / "crossed")
    (crossed / "checkpoints" / "step_0000006").rename(tmp_path / "aside")
    good(train(stack, crossed, text, late_reads=True, **GROUPED, **COMMON))
    for name in ("grouped", "crossed"):
        for ours, theirs in zip(measured(tmp_path / name), measured(tmp_path / "one"), strict=True):
            assert ours[2:] == pytest.approx(theirs[2:], rel=1e-5, abs=2e-8)


def on_gpu():
    """At the model's widths in bf16, an expert without rows among sixteen."""
    import torch

    from model.layers.experts import grouped

    counts = torch.randint(1, 500, (16,), generator=torch.Generator().manual_seed(0))
    counts[3] = 0
    ends = counts.cumsum(0, dtype=torch.int32).cuda()
    x, weights = random(int(ends[-1]), 3584), random(16, 896, 3584, seed=1) / 60
    return differences(
        lambda x, w: grouped.product(x, ends, list(w)), lambda x, w: exact(x, ends, list(w)), [x, weights]
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu(gpu):
    assert max(gpu.call(on_gpu)) < 4e-3


def against_transformer_engine():
    """Differences of a layer's output and fp32 gradients from those of ``grouped_fused``, relative; same weights."""
    import torch
    from megatron.core.transformer.moe.experts import TEGroupedMLP

    from model.layers.experts.grouped import GroupedExperts

    found = {}
    for path in ("grouped_fused", "grouped_mm"):
        model = tiny.fresh(on_cpu=False, bf16=True, paths={"moe": path, "mamba3": "torch", "wgrad": "fused"})
        layer = model.cuda().decoder.layers[NUMBER - 1].mlp
        kind = GroupedExperts if path == "grouped_mm" else TEGroupedMLP
        assert isinstance(layer.experts, kind)
        weight = layer.router.weight  # in its own dtype: Transformer Engine multiplies no bf16 by fp32
        weight.data.copy_(torch.linspace(-1, 1, weight.numel(), device="cuda").view_as(weight))
        for parameter in layer.parameters():
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
        hidden = random(64, 1, tiny.SIZE.hidden).requires_grad_()
        out = layer(hidden)[0]
        out.backward(torch.ones_like(out))
        experts = layer.experts
        if path == "grouped_mm":
            grads = [expert.linear_fc1.weight.main_grad for expert in experts.local_experts]
        else:
            grads = [getattr(experts.linear_fc1, f"weight{n}").main_grad for n in range(tiny.SIZE.experts.count)]
        found[path] = [out.cpu(), hidden.grad.cpu(), torch.stack(grads).cpu()]
    return [tiny.error(a, b) for a, b in zip(found["grouped_mm"], found["grouped_fused"], strict=True)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_layer_is_transformer_engines(gpu):
    """First weights too: both draw them in one order."""
    assert max(gpu.call(against_transformer_engine)) < 1e-2
