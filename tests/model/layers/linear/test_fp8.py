"""FP8 layers: what goes through FP8 and where gradients end, with torch's casts in Transformer Engine's place.

Its own products are tested on a GPU, in tests/model/journeys/test_gpu_paths.py.
"""

import pytest
import tiny
from eight_cases import error, torchs

pytestmark = pytest.mark.upstream
BF16, FP8 = 2**-8, 0.08  # E4M3 has three bits after the first, E5M2 two; errors of a sum's terms average out


def layer(columns):
    import torch

    from model.layers.linear import fp8

    torch.manual_seed(0)
    made = torch.nn.Linear(columns, 64, bias=False, dtype=torch.bfloat16)
    made.__class__ = fp8.Linear
    return made


@torchs
def errors(shape):
    """Of the output, the input's gradient and the weight's."""
    import torch

    made = layer(48)
    x, above = torch.randn(*shape, 48, dtype=torch.bfloat16), torch.randn(*shape, 64, dtype=torch.bfloat16)
    leaf = x.clone().requires_grad_()
    y = made(leaf)
    inputs, weight = torch.autograd.grad(y, (leaf, made.weight), above)
    xs, ws, up = x.double(), made.weight.detach().double(), above.double()
    due = up.flatten(0, -2).t() @ xs.flatten(0, -2)
    return [error(y, xs @ ws.t()), error(inputs, up @ ws), error(weight, due)]


@torchs
def unaligned(rows, columns):
    import torch

    made, x = layer(columns), torch.randn(rows, columns, dtype=torch.bfloat16)
    return torch.equal(made(x), torch.nn.functional.linear(x, made.weight))


@torchs
def accumulated(flagged):
    """Error of Megatron's gradient after two passes, and what autograd and Megatron's hook are told."""
    import torch

    made, x = layer(48), torch.randn(32, 48, dtype=torch.bfloat16)
    above = torch.randn(32, 64, dtype=torch.bfloat16)
    made.weight.main_grad = torch.ones(64, 48)
    if flagged:
        made.weight.grad_added_to_main_grad = False
    for _ in range(2):
        made(x).backward(above)
    told = made.weight.grad is not None, getattr(made.weight, "grad_added_to_main_grad", False)
    return error(made.weight.main_grad - 1, 2 * above.double().t() @ x.double()), told


@torchs
def parallel(name, sequence, biased):
    """Errors of the output, the input's gradient and Megatron's of the weight; Megatron's own layers' beside them."""
    import copy

    import torch
    from megatron.core import tensor_parallel

    from model.layers.linear import fp8

    config = copy.copy(tiny.model().config)
    config.params_dtype, config.gradient_accumulation_fusion = torch.bfloat16, False
    options = {"Column": {"gather_output": False}, "Row": {"input_is_parallel": True}}[name] | {"bias": biased}
    options |= {"config": config, "init_method": torch.nn.init.normal_, "skip_bias_add": False}
    found = []
    for kind in (getattr(fp8, name), getattr(tensor_parallel, f"{name}ParallelLinear")):
        made = kind(48, 64, **options)
        torch.manual_seed(0)
        with torch.no_grad():
            made.weight.normal_()
        x, above = torch.randn(sequence, 2, 48).bfloat16(), torch.randn(sequence, 2, 64).bfloat16()
        leaf = x.clone().requires_grad_()
        made.weight.main_grad = torch.zeros(64, 48)
        y, _ = made(leaf)
        y.backward(above)
        grad = made.weight.main_grad if made.weight.grad is None else made.weight.grad
        xs, ws, up = x.double(), made.weight.detach().double(), above.double()
        due = up.flatten(0, 1).t() @ xs.flatten(0, 1)
        found.append((error(y, xs @ ws.t()), error(leaf.grad, up @ ws), error(grad, due)))
    return found


def layers_in_fp8(path):
    """The names, without numbers, of the layers of a whole model whose products are in FP8."""
    import torch
    from megatron.core.transformer.spec_utils import ModuleSpec

    from model.kinds.path import Choice
    from model.layers import spec
    from model.layers.linear import fp8

    found = set()

    def look(at, name):
        if isinstance(at, type) and issubclass(at, fp8._Parallel):
            found.add(name)
        parts = at.submodules if isinstance(at, ModuleSpec) else at if hasattr(at, "__dataclass_fields__") else None
        inner = vars(parts).items() if parts is not None else enumerate(at) if isinstance(at, list) else ()
        for key, value in inner:
            look(value, key)

    chosen = dict(tiny.model().config.model_paths) | {"mtp_proj": Choice(path, "")}
    look(spec.hybrid_stack(tiny.SIZE, chosen, not torch.cuda.is_available()), "")
    return found


@pytest.mark.parametrize("shape", [(32,), (2, 16), (1, 3, 16)])
def test_values_and_gradients(megatron, shape):
    found = megatron.call(errors, shape)
    assert max(found) < FP8
    assert min(found) > BF16  # they did go through FP8


@pytest.mark.parametrize("sizes", [(33, 48), (32, 40)])
def test_sizes_that_are_no_sixteens_stay_bf16(megatron, sizes):
    assert megatron.call(unaligned, *sizes)


@pytest.mark.parametrize("flagged", [False, True])
def test_megatrons_gradient_takes_the_weights(megatron, flagged):
    off, told = megatron.call(accumulated, flagged)
    assert off < FP8
    assert told == (flagged, flagged)


@pytest.mark.parametrize("name", ["Column", "Row"])
def test_megatrons_layers(megatron, name):
    ours, theirs = megatron.call(parallel, name, 16, False)
    assert max(ours) < FP8
    assert min(ours) > BF16
    assert max(theirs) < BF16


@pytest.mark.parametrize(("sequence", "biased"), [(15, False), (16, True)])
def test_megatrons_layers_that_cannot_are_as_they_were(megatron, sequence, biased):
    ours, theirs = megatron.call(parallel, "Column", sequence, biased)
    assert ours == theirs


def test_mtps_layers_alone(megatron):
    assert megatron.call(layers_in_fp8, "bf16") == set()
    assert megatron.call(layers_in_fp8, "fp8") == {"linear_fc1", "linear_fc2", "eh_proj"}
