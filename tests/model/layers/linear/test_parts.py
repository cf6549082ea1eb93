"""A projection in parts: its values and gradients beside the whole one's, in Mamba3 and alone.

FP8 products are torch's here; Transformer Engine's own are tested in tests/model/journeys/test_gpu_paths.py.
"""

import pytest
from eight_cases import error, torchs

pytestmark = pytest.mark.upstream
BF16, FP8 = 2**-7, 0.08  # gradients of the input are rounded after each part


def layer(eight, wide=(32, 16), rest=(5, 3)):
    import torch

    from model.layers.linear import parts

    torch.manual_seed(0)
    made = torch.nn.Linear(48, sum(wide) + sum(rest), bias=False, dtype=torch.bfloat16)
    made.__class__ = parts.Linear
    made.wide, made.rest, made.eight = wide, rest, eight
    return made


@torchs
def errors(shape, eight, wide, flagged):
    """Of the outputs, of the input's gradient and of the weight's, part by part; what autograd and Megatron are told.

    ``flagged``: Megatron's gradient, which holds ones, takes the weight's, or else autograd's does (None).
    """
    import torch

    made = layer(eight, wide)
    widths = [*wide, *made.rest]
    x = torch.randn(*shape, 48, dtype=torch.bfloat16)
    above = [torch.randn(*shape, 2 * width, dtype=torch.bfloat16)[..., ::2] for width in widths]
    if flagged is not None:
        made.weight.main_grad = torch.ones(made.weight.shape)
    if flagged:
        made.weight.grad_added_to_main_grad = False
    leaf = x.clone().requires_grad_()
    outs = torch.split(made(leaf), widths, dim=-1)
    torch.autograd.backward(outs, above)
    xs, ws, up = x.double(), made.weight.detach().double(), torch.cat(above, -1).double()
    weight = made.weight.grad if flagged is None else made.weight.main_grad - 1
    due = (up.flatten(0, -2).t() @ xs.flatten(0, -2)).split(widths)
    return (
        [error(one, want) for one, want in zip(outs, (xs @ ws.t()).split(widths, -1), strict=True)],
        error(leaf.grad, up @ ws),
        [error(one, want) for one, want in zip(weight.split(widths), due, strict=True)],
        [out.is_contiguous() for out in outs[: len(wide)]],
        (made.weight.grad is not None, getattr(made.weight, "grad_added_to_main_grad", None)),
    )


@torchs
def one_part():
    """The gradients where one part alone is used, with its absence's zeros in the others' rows."""
    import torch

    made = layer(False)
    x = torch.randn(16, 48, dtype=torch.bfloat16, requires_grad=True)
    torch.split(made(x), [32, 16, 5, 3], dim=-1)[1].sum().backward()
    rows = made.weight.grad.abs().sum(1) > 0
    return rows.nonzero()[:, 0].tolist(), error(x.grad, made.weight[32:48].double().sum(0).expand(16, -1))


@torchs
def refused(function, *arguments, **options):
    import torch

    parts = layer(False)(torch.zeros(16, 48, dtype=torch.bfloat16))
    getattr(torch, function)(parts, *arguments, **options)


@torchs
def in_mamba3(rank):
    """The largest error of Mamba3's output and gradients in fp32, in parts beside whole."""
    import copy

    import torch

    from model.layers.linear import parts
    from model.layers.mamba3 import install
    from model.layers.mamba3.mixer import build_mamba3

    torch.manual_seed(0)
    path = {"path": "torch_rows", "row": 16} if rank > 1 else {}
    plain = build_mamba3(32, d_state=16, headdim=8, ngroups=2, rank=rank, chunk=4, device="cpu", **path)
    ours = copy.deepcopy(plain)
    install.parted(ours.mamba)
    x, cu, found = torch.randn(32, 32), torch.tensor([0, 16, 20, 32], dtype=torch.int32), []
    for mixer in (ours, plain):
        leaf = x.clone().requires_grad_()
        y = mixer(leaf, cu)
        found.append((y, *torch.autograd.grad(y.sin().sum(), (leaf, *mixer.parameters()))))
    assert type(ours.mamba.in_proj) is parts.Linear
    return max(error(one, other.double()) for one, other in zip(*found, strict=True))


def sizes(path):
    import torch

    from model.layers.linear import parts
    from model.layers.mamba3 import install
    from model.layers.mamba3.mixer import build_mamba3

    mamba = build_mamba3(32, d_state=16, headdim=8, ngroups=2, device="cpu").mamba
    if path != "bf16":
        install.parted(mamba, eight=path == "fp8_parts")
    into, out = mamba.in_proj, mamba.out_proj
    return type(into) is parts.Linear, getattr(into, "eight", None), type(out) is torch.nn.Linear


@pytest.mark.parametrize("shape", [(32,), (2, 16), (1, 3, 16)])
@pytest.mark.parametrize("eight", [False, True])
def test_values_and_gradients(megatron, shape, eight):
    outs, inputs, weights, contiguous, _ = megatron.call(errors, shape, eight, (32, 16), None)
    low = FP8 if eight else BF16
    assert all(contiguous)
    assert max(outs[:2] + weights[:2]) < low
    assert max(outs[2:] + weights[2:]) < BF16
    assert inputs < low
    assert not eight or min(outs[:2] + weights[:2]) > BF16  # they did go through FP8


@pytest.mark.parametrize(("shape", "wide"), [((33,), (32, 16)), ((32,), (32, 8))])
def test_sizes_that_are_no_sixteens_stay_bf16(megatron, shape, wide):
    outs, inputs, weights, _, _ = megatron.call(errors, shape, True, wide, None)
    assert max(*outs, inputs, *weights) < BF16


@pytest.mark.parametrize("flagged", [False, True])
@pytest.mark.parametrize("eight", [False, True])
def test_megatrons_gradient_takes_the_weights(megatron, eight, flagged):
    *_, weights, _, told = megatron.call(errors, (32,), eight, (32, 16), flagged)
    assert max(weights) < (FP8 if eight else BF16)
    assert told == ((True, True) if flagged else (False, None))


def test_a_part_that_nothing_reads(megatron):
    rows, off = megatron.call(one_part)
    assert rows == list(range(32, 48))
    assert off < BF16


@pytest.mark.parametrize(
    ("function", "arguments", "options"),
    [
        ("split", ([16, 32, 5, 3],), {"dim": -1}),
        ("split", ([32, 16, 5, 3],), {"dim": 1}),
        ("split", (8,), {"dim": -1}),
        ("chunk", (2,), {"dim": -1}),
    ],
)
def test_nothing_else_takes_parts(megatron, function, arguments, options):
    with pytest.raises(TypeError):
        megatron.call(refused, function, *arguments, **options)


@pytest.mark.parametrize("rank", [4, 1])
def test_in_mamba3(megatron, rank):
    assert megatron.call(in_mamba3, rank) < 1e-5


def test_only_the_paths_that_ask_for_it(megatron):
    assert megatron.call(sizes, "bf16") == (False, None, True)
    assert megatron.call(sizes, "bf16_parts") == (True, False, True)
    assert megatron.call(sizes, "fp8_parts") == (True, True, False)
