"""CUDA: each path that only a GPU has against fp64, at the model's own widths. `pytest -m gpu tests/model`."""

import pytest
import torch
from gpu_cases import differences, random

pytestmark = [pytest.mark.gpu, pytest.mark.upstream]
CUTS = (0, 1, 700, 701, 1024, 1500, 2048)
ROW = 1024
HALF = 2e-2  # a few bf16 roundings in a row, 2**-9 each; a wrong term is of order 1


def dense():
    """Dense MLA's kernel: 28 heads, 128 channels of queries and keys, 64 of values."""
    from model.layers.attention import attention

    bounds = torch.tensor(CUTS, dtype=torch.int32, device="cuda")
    leaves = [random(CUTS[-1], 28, width, seed=seed) for seed, width in enumerate((128, 128, 64))]
    return differences(
        lambda q, k, v: attention.cudnn_attention(q, k, v, bounds, CUTS[-1], 128**-0.5),
        lambda q, k, v: attention.masked_attention(q, k, v, bounds, 128**-0.5),
        leaves,
    )


def heads(path):
    """The loss of each token, by Liger-Kernel or in chunks."""
    from torch.nn.functional import cross_entropy

    from model.layers.ends import head

    labels = torch.arange(3000, device="cuda") % 65_536
    function = head.LOSSES[path]
    return differences(
        lambda hidden, weight: function(hidden, weight, labels),
        lambda hidden, weight: cross_entropy(hidden @ weight.t(), labels, reduction="none"),
        [random(3000, 512), random(65_536, 512, seed=1) / 16],
    )


def once():
    """The mean loss over two thirds of the tokens, its gradients made with the losses."""
    from torch.nn.functional import cross_entropy

    from model.layers.ends import head

    labels = torch.arange(5000, device="cuda") % 65_536
    counted = (torch.arange(5000, device="cuda") % 3 > 0).float()
    return differences(
        lambda hidden, weight: (head.once_loss(hidden, weight, labels, counted) * counted).sum()[None] / counted.sum(),
        lambda hidden, weight: cross_entropy((hidden @ weight.t())[counted > 0], labels[counted > 0])[None],
        [random(5000, 512), random(65_536, 512, seed=1) / 16],
    )


def eight():
    """A layer whose products are in FP8."""
    from model.layers.linear import fp8

    return differences(
        fp8._Product.apply, lambda x, weight: x @ weight.t(), [random(2048, 512), random(1040, 512, seed=1)]
    )


def parted(eight):
    """A layer whose output comes in parts, put together."""
    from model.layers.linear import parts

    def run(x, weight):
        return torch.cat(parts._Parted.apply(x, weight, (512, 256, 16), eight), dim=-1)

    return differences(run, lambda x, weight: x @ weight.t(), [random(2048, 512), random(784, 512, seed=1)])


def norms(kind):
    """Mamba-3's norm of B and C, [T, rank, groups, 128]."""
    from torch.nn.functional import rms_norm

    from model.layers.mamba3 import upstream

    module = upstream.import_mamba3()
    norm = module.RMSNormGated(128, eps=1e-5, device="cuda", dtype=torch.bfloat16)
    run = upstream.torch_norm(norm) if kind == "torch" else norm

    return differences(
        lambda x, weight: torch.func.functional_call(run, {"weight": weight}, (x,)),
        lambda x, weight: rms_norm(x, (128,), weight, 1e-5),
        [random(2048, 4, 8, 128), random(128, seed=1)],
    )


def mamba_rows(path):
    """The mixer on rows with decay resets, by a path, against the packed one by TileLang's kernels; gradients too."""
    import tiny

    from model.layers.mamba3.mixer import Mamba3Mixer, build_mamba3

    bounds = torch.tensor(CUTS, dtype=torch.int32, device="cuda")
    torch.manual_seed(0)
    mixer = build_mamba3(512, ngroups=2, dtype=torch.bfloat16, device="cuda", path="tilelang")
    hidden, found = random(CUTS[-1], 512), []
    on_rows = Mamba3Mixer(mixer.mamba, path, ROW)
    for run in (lambda x: mixer(x, bounds), lambda x: on_rows(x, bounds)):
        leaf = hidden.clone().requires_grad_()
        out = run(leaf)
        found.append(
            [out, *torch.autograd.grad(out, [leaf, *mixer.parameters()], torch.cos(out.detach().float()).to(out))]
        )
    packed, rows = found
    return [
        tiny.error(one.detach().float().cpu(), other.detach().float().cpu())
        for one, other in zip(rows, packed, strict=True)
    ]


def on_hopper(heads, groups):
    """Relative errors of the backward pass by blocks, by Gluon's kernels beside pack 53's: three rows of 320 tokens;
    last the forward pass's, beside the reference in fp64. None without that pack.
    """
    import math

    import tiny

    from model.layers.mamba3 import scan
    from model.layers.mamba3.hopper.launches import LAUNCHES
    from model.layers.mamba3.reference import mamba3_mimo_reference

    try:
        from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_bwd_parallel as parallel
    except ImportError:
        return None
    rows, length, rank, state, channels, chunk = 3, 320, 4, 128, 64, 16

    def table(*shape, seed):
        return random(heads, rank, *shape, seed=seed).float() / 10 + 1

    wide = [random(rows, length, rank, groups, state, seed=seed) for seed in (0, 1)]
    x, z, above = (random(rows, length, heads, channels, seed=seed) for seed in (2, 3, 4))
    decay, dt = (random(rows, heads, length, seed=seed).float().abs() / 10 for seed in (5, 6))
    up, down, gate = (table(channels, seed=seed) for seed in (7, 8, 9))
    biases = [table(state, seed=seed) for seed in (10, 11)]
    trap, skip = random(rows, heads, length, seed=13), random(heads, seed=14).float()
    angles, summed = random(rows, length, heads, 32, seed=12).float(), scan.decay_sums(-decay, chunk)[0]
    turned = (math.pi * angles.double().tanh() * dt.transpose(1, 2).unsqueeze(-1)).cumsum(1)
    turned = (turned % (2 * math.pi)).float()  # as mamba-ssm's sums are, from which pack 53's kernels turn
    given = (
        above,
        *wide,
        x,
        *biases,
        up,
        down,
        z,
        gate,
        turned,
        summed,
        None,
        dt,
        trap,
        skip,
        None,
        chunk,
        4,
        torch.bfloat16,
    )
    found = list(scan.mimo_backward(*given, by=LAUNCHES))
    theirs = (above, *wide, x, -decay, dt, trap, *biases, up, gate, down, turned, skip, z, chunk)
    assert parallel.can_run_parallel(*theirs)
    wanted = list(parallel.mamba_mimo_bwd_parallel(*theirs))
    out, _, _ = LAUNCHES.forward(
        *wide,
        x,
        *biases,
        up,
        down,
        z,
        skip,
        gate,
        turned,
        summed,
        None,
        dt,
        trap,
        None,
        chunk_size=chunk,
        rotary_dim_divisor=4,
        dtype=torch.bfloat16,
    )
    found.append(out)
    exact = [one.double() for one in (*wide, x, -decay, dt, trap, *biases, up, gate, down, angles, skip, z)]
    wanted.append(mamba3_mimo_reference(*exact, chunk_size=chunk, rotary_dim_divisor=4, dtype=torch.float64))
    return [tiny.error(one.float().cpu(), other.float().cpu()) for one, other in zip(found, wanted, strict=True)]


def layer_norm():
    """Transformer Engine's norm of the model's width, with what goes around it and without."""
    from torch.nn.functional import rms_norm

    from model.layers.common.norm import by_transformer_engine

    def exact(x, weight):
        return rms_norm(x, (4096,), weight, 1e-5)

    leaves = [random(2048, 1, 4096), random(4096, seed=1)]
    alone = differences(lambda x, weight: by_transformer_engine(x, weight, 1e-5)[0], exact, leaves)
    both = differences(
        lambda x, weight: torch.cat(by_transformer_engine(x, weight, 1e-5), dim=1),
        lambda x, weight: torch.cat((exact(x, weight), x), dim=1),
        leaves,
    )
    return alone + both


def weight_gradient():
    """Relative errors of an accumulating layer's output, input gradient and fp32 weight gradient, which began at 1."""
    import tiny
    from torch import nn

    from model.layers.linear import wgrad

    x, weight = random(3001, 512), random(384, 512, seed=1)
    layer = nn.Linear(512, 384, bias=False, device="cuda", dtype=torch.bfloat16)
    wgrad.enable(layer)
    layer.weight.data.copy_(weight)
    layer.weight.main_grad = torch.ones(384, 512, device="cuda")
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    dy = torch.cos(y.detach().float()).to(y)
    y.backward(dy)
    exact = (x.double() @ weight.double().T, dy.double() @ weight.double(), 1 + dy.double().T @ x.double())
    pairs = zip((y.detach(), leaf.grad, layer.weight.main_grad), exact, strict=True)
    return [tiny.error(one.cpu(), other.cpu()) for one, other in pairs]


def test_products_add_weight_gradients_in_fp32(gpu):
    output, inputs, weights = gpu.call(weight_gradient)
    assert max(output, inputs) < HALF
    assert weights < 1e-5  # products of bf16 are exact in fp32, a bf16 gradient would be off by 2e-3


def test_dense_attention(gpu):
    assert max(gpu.call(dense)) < HALF


@pytest.mark.parametrize("path", ["liger", "torch"])
def test_the_loss_of_each_token(gpu, path):
    assert max(gpu.call(heads, path)) < HALF


def test_the_loss_with_its_gradients(gpu):
    assert max(gpu.call(once)) < HALF


def test_products_in_fp8(gpu):
    found = gpu.call(eight)
    assert max(found) < 0.08  # three bits after the first in what goes in, two in what comes from above
    assert min(found) > 2**-8


@pytest.mark.parametrize("eight", [False, True])
def test_products_in_parts(gpu, eight):
    found = gpu.call(parted, eight)
    assert max(found) < (0.08 if eight else HALF)
    assert not eight or min(found) > 2**-8


def test_the_norms_before_layers(gpu):
    assert max(gpu.call(layer_norm)) < HALF


@pytest.mark.parametrize("kind", ["mamba", "torch"])
def test_the_norms_of_b_and_c(gpu, kind):
    assert max(gpu.call(norms, kind)) < HALF


@pytest.mark.parametrize("path", ["tilelang_rows", "hopper_rows"])
def test_mamba_on_rows_is_mamba_on_the_packed_stream(gpu, path):
    assert max(gpu.call(mamba_rows, path)) < 6e-2  # sums over a document of terms of both signs, as in test_mamba3_gpu


@pytest.mark.parametrize(("heads", "groups"), [(128, 8), (112, 8), (10, 2)])
def test_hoppers_kernels_do_what_pack_53s_do(gpu, heads, groups):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no GPU of compute capability 9.0")
    found = gpu.call(on_hopper, heads, groups)
    if found is None:
        pytest.skip("pack 53 is not in the stack")
    assert max(found) < HALF
