"""What bf16 training leaves in fp32: the parameters that recurrences are sensitive to, and the router's counts."""

import pytest
import tiny
from isolated import Worker, working
from precision import FP32

pytestmark = pytest.mark.upstream
BUFFERS = {"mlp.router.expert_bias", "mlp.router.local_tokens_per_expert"}
STEPS = 50
BF16 = 0.05  # twelve layers of 2⁻⁸


def wrapped():
    """A new model of the tiny size as bf16 training wraps it."""
    from megatron.core.transformer.module import Float16Module

    model = tiny.fresh(bf16=True)
    return Float16Module(model.config, model)


def dtypes():
    """({parameter: dtype}, {buffer: dtype}) after the wrap, where a state to save or to load is asked for, as it is
    before the first step: routers make their own state fp32 again there, and in each forward."""
    model = wrapped().module
    model.state_dict()
    parameters = {name: str(p.dtype) for name, p in model.named_parameters()}
    return parameters, {name: str(b.dtype) for name, b in model.named_buffers()}


def beside_fp32():
    """Relative error of the bf16 model's logits from those of the fp32 model of the same weights, and parameters whose
    gradient is missing or not finite."""
    import torch

    model, twin, batch = wrapped(), tiny.fresh(), tiny.batch()
    with torch.no_grad():
        for ours, theirs in zip(twin.parameters(), model.module.parameters(), strict=True):
            ours.copy_(theirs)
        low, high = (m(packed_seq_params=tiny.packed(), **tiny.inputs(batch)) for m in (model, twin))
    model(packed_seq_params=tiny.packed(), **batch).mean().backward()
    bad = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    return tiny.error(low, high), bad


def counted():
    """Tokens that a router counted over STEPS micro-batches, each one, and the number that there were."""
    import torch

    router = wrapped().module.decoder.layers[1].mlp.router
    hidden, routed = tiny.hidden().detach().bfloat16(), torch.zeros(tiny.SIZE.experts.count)
    for _ in range(STEPS):
        routed += router(hidden)[1].sum(0)
    return router.local_tokens_per_expert.tolist(), routed.tolist()


@pytest.fixture(params=["released", *(pytest.param(name, marks=pytest.mark.long) for name in ("newest", "dev"))])
def cast(request):
    """``dtypes`` on a stack."""
    if request.param == "released":
        return request.getfixturevalue("megatron").call(dtypes)
    with working(Worker(stack=request.param)) as worker:
        return worker.call(dtypes)


def test_the_contract_holds_after_the_cast(cast):
    parameters, buffers = cast
    numbers = {f"decoder.layers.{n - 1}.": kind for kind in FP32 for n in tiny.SIZE.numbers(kind)}
    contract = {place + name for place, kind in numbers.items() for name in FP32[kind]}
    assert {name for name, dtype in parameters.items() if dtype == "torch.float32"} == contract
    assert {dtype for name, dtype in parameters.items() if name not in contract} == {"torch.bfloat16"}
    routers = {f"decoder.layers.{n - 1}.{name}" for n in tiny.SIZE.numbers("moe") for name in BUFFERS}
    assert {name: buffers[name] for name in routers} == dict.fromkeys(routers, "torch.float32")


def test_bf16_computes_what_fp32_computes(megatron):
    error, bad = megatron.call(beside_fp32)
    assert error < BF16
    assert bad == []


def test_routers_count_tokens_exactly(megatron):
    """In bf16 a count above 256 is rounded at every addition, and the selection bias follows the counts."""
    got, routed = megatron.call(counted)
    assert max(routed) > 1000
    assert got == routed
