"""What pack 54 writes whole of dense MLA, in the model: by the interpreter, as compiled, and on a GPU."""

import contextlib
import importlib.util
import re
from types import SimpleNamespace

import pytest
import torch
from scripted import run

JOINED = 1  # latents of one head
KERNELS = ("_rotate_kernel", "_key_value_kernel", "_grad_key_value_kernel")


@pytest.mark.upstream
@pytest.mark.long
def test_tensors_and_all_gradients_are_megatrons_bit_by_bit_and_no_heads_are_joined():
    found = run("interpreted_whole.py", "cases", TRITON_INTERPRET="1")
    assert len(found) == 6
    for differ, before, joined, compared in found:
        assert differ == 0 and compared >= 10
        assert joined == JOINED < before


@pytest.mark.upstream
@pytest.mark.long
def test_the_model_trains_as_it_did():
    losses, gradients, all_there = run("interpreted_whole.py", "model", TRITON_INTERPRET="1")
    assert max(losses, gradients) < 1e-4 and all_there


@pytest.fixture
def module():
    """The kernels' file as the pack adds it, alone."""
    pytest.importorskip("triton")
    from model.patched import overlay
    from patchlane.base.errors import CannotTestHere
    from reproducers.record import schema
    from reproducers.upstream.store import Store

    try:
        root = overlay.build(Store(), schema.select(["54"], schema.load_packs()), "cpu").root("megatron-core")
    except (CannotTestHere, OSError) as lacking:
        pytest.skip(str(lacking))
    path = root / "megatron/core/fusions/fused_mla_rope_qkv.py"
    spec = importlib.util.spec_from_file_location("fused_mla_rope_qkv", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.upstream
def test_a_gpu_rounds_each_product_before_the_sum_and_moves_sixteen_bytes_at_a_time(module, monkeypatch):
    from compiled import Launches

    launches = {name: Launches(getattr(module, name)) for name in KERNELS}
    for name, launch in launches.items():
        monkeypatch.setattr(module, name, launch)
    monkeypatch.setattr(torch.cuda, "device", lambda *_: contextlib.nullcontext())

    def empty(*shape):
        return torch.empty(4, 1, *shape, dtype=torch.bfloat16)

    ctx = SimpleNamespace(needs_input_grad=(True, True), save_for_backward=lambda *_: None)
    for back in (False, True):
        module._Rotate.forward(ctx, empty(32, 192), empty(2, 64), 128, back)
    module._KeyValue.forward(ctx, empty(32, 256), empty(1, 64), 128)
    with torch.no_grad():
        module._KeyValue.backward(ctx, empty(32, 192), empty(32, 128))
    made = {name: launch.ptx for name, launch in launches.items()}
    assert [len(made[name]) for name in KERNELS] == [2, 1, 1]
    for ptx in made["_rotate_kernel"]:
        products = ptx.count("mul.rn.bf16 ") + 2 * ptx.count("mul.rn.bf16x2 ")
        assert "fma" not in ptx and products == 4 * 32 * 32 // 128  # of one of 128 threads
    for ptx in (ptx for each in made.values() for ptx in each):
        assert not re.search(r"(ld|st)\.global\S*\.b16", ptx)
        assert re.search(r"ld\.global\S*v4\.b32", ptx) and re.search(r"st\.global\S*v4\.b32", ptx)


def at_the_models_sizes(heads):
    """Three rows of 4,096 tokens in bf16, documents of 1 to 4,096; a model as a CPU has it, so that nothing else is by
    kernels."""
    import whole_cases

    from model.families.sizes import SIZES

    size = SIZES["nam56r_tiny"]
    size = size.model_copy(
        update={"heads": heads, "attention": SIZES["nam56r"].attention, "indexer": SIZES["nam56r"].indexer}
    )
    cuts = (0, 1, 700, 701, 4096, 8192, 9000, 12_288)
    return whole_cases.case(size, torch.bfloat16, (cuts, 4097), "cuda")


@pytest.mark.upstream
@pytest.mark.gpu
@pytest.mark.parametrize("heads", [28, 32])
def test_on_a_gpu_at_the_models_sizes(gpu, heads):
    found = gpu.call(at_the_models_sizes, heads)
    if found is None:
        pytest.skip("pack 54 is not validated: training goes without it")
    differ, before, joined, compared = found
    assert differ == 0 and compared >= 10
    assert joined == JOINED < before
