"""The routers' balance loss of packed documents: by the interpreter, what it leaves to pack 39, its code, and a GPU."""

from types import SimpleNamespace

import pytest
import torch
from scripted import run

ROUNDING = 5e-7  # fp32's sums; a GPU's division is off by two last digits besides


def worst(found):
    return max(error for of in found for error in of.values())


@pytest.mark.upstream
def test_loss_tokens_and_gradient_are_fp64s_and_pack_39s():
    found = run("interpreted_balance.py", "cases", TRITON_INTERPRET="1")
    assert len(found) == 24
    assert worst(of["fp64"] for of in found) < ROUNDING
    assert worst(of["pack 39"] for of in found) < ROUNDING


@pytest.mark.upstream
@pytest.mark.long
def test_a_models_routers_learn_the_same_without_pack_39s_method():
    error, largest, with_kernels, without = run("interpreted_balance.py", "model", TRITON_INTERPRET="1")
    assert error < ROUNDING and largest > 1e-6
    assert (with_kernels, without) == (0, 5)  # a layer of experts each


@pytest.mark.parametrize(
    ("interpreted", "dtype", "changed"),
    [
        (False, torch.float32, {}),  # on a CPU
        (True, torch.float64, {}),
        (True, torch.float32, {"cp_group": SimpleNamespace(size=lambda: 2)}),
        (True, torch.float32, {"tp_cp_group": SimpleNamespace(size=lambda: 2)}),
        (True, torch.float32, {"config": SimpleNamespace(num_moe_experts=4, sequence_parallel=True)}),
    ],
)
def test_what_the_kernels_do_not_take_is_pack_39s(interpreted, dtype, changed, monkeypatch):
    triton = pytest.importorskip("triton")
    import balance_cases

    from model.layers.experts import balance

    monkeypatch.setattr(triton.knobs.runtime, "interpret", interpreted)
    router = balance_cases.a_router(4, 2)
    vars(router).update(changed)
    given = ("probs", torch.ones(3, 4, dtype=dtype), torch.ones(3, 4, dtype=torch.bool), 0.5, torch.tensor([0, 3]))
    assert balance.balancing(router)(lambda *arguments: arguments)(*given) == given
    assert router.attached == []


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        (torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(3, 4, dtype=torch.bool)),
        (torch.ones(3, 4), torch.ones(3, 4)),
        (torch.ones(3, 4), torch.ones(3, 5, dtype=torch.bool)),
        (torch.ones(3), torch.ones(3, dtype=torch.bool)),
    ],
)
def test_other_scores_and_choices_are_refused(scores, chosen):
    pytest.importorskip("triton")
    from model.layers.experts.balance import balance

    with pytest.raises(ValueError, match="fp32"):
        balance(scores, chosen, torch.tensor([0, 3], dtype=torch.int32), 2, 1.0)


@pytest.mark.upstream
def test_a_router_is_changed_where_pack_39_is(megatron):
    pytest.importorskip("triton")
    assert megatron.call(enabled) == ["ours", "ValueError"]


def enabled():
    from model.layers.experts import balance

    with_pack, without = SimpleNamespace(_apply_packed_seq_aux_loss="theirs"), SimpleNamespace()
    balance.enable(with_pack)
    try:
        balance.enable(without)
    except ValueError as refused:
        changed = with_pack._apply_packed_seq_aux_loss != "theirs"
        return ["ours" if changed else "theirs", type(refused).__name__]


def test_three_launches_of_one_code_whatever_the_number_of_documents(monkeypatch):
    pytest.importorskip("triton")
    from compiled import Launches, taken

    from model.layers.experts import balance

    names = ("balance_sums", "balance_loss", "balance_gradient")
    launches = {name: Launches(getattr(balance, name)) for name in names}
    for name, of in launches.items():
        monkeypatch.setattr(balance, name, of)
    for documents in (1, 5, 16):
        scores, bounds = torch.ones(64, 16, requires_grad=True), torch.zeros(documents + 1, dtype=torch.int32)
        balance.balance(scores, torch.ones(64, 16, dtype=torch.bool), bounds, 4, 1.0)[0].backward()
    assert {name: (len(of.ptx), len(set(of.ptx))) for name, of in launches.items()} == dict.fromkeys(names, (3, 1))
    assert {name: taken(of.ptx[0])["spilled"] for name, of in launches.items()} == dict.fromkeys(names, 0)
    assert "ld.global.v4" in launches["balance_sums"].ptx[0].replace(".b32", "")


@pytest.mark.upstream
@pytest.mark.gpu
@pytest.mark.parametrize("padded", [False, True])
def test_on_a_gpu(gpu, padded):
    import balance_cases

    found = [gpu.call(balance_cases.case, name, padded, "cuda") for name in balance_cases.CASES]
    assert worst(found) < 4 * ROUNDING
