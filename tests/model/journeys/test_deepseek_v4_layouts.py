"""DeepSeek-V4 in each layout is DeepSeek-V4 on one rank: losses, gradients of all parameters, each router's experts."""

import pytest
import torch

pytestmark = pytest.mark.upstream
# Of a gradient's largest number. Experts on other ranks sum fp32 in another order: 2e-5 was seen of a scale, a sum over
# all tokens that nearly cancels. Stages compute what one rank computes: only the embedding has two parts to add.
EXPERTS, STAGES = 1e-4, 1e-6
LOSS = 2e-6  # 2⁻²⁴ a sum; after an update 5e-7 was seen
# Newton-Schulz is in bf16, where a sum of fp32 in another order may round otherwise: 3e-5 was seen after two updates
MUON = 5e-4
LAYOUTS = {
    "ep2": (2, {"expert_parallel": 2}, EXPERTS),
    "dp2": (2, {}, EXPERTS),
    "pp2": (2, {"pipeline_parallel": 2}, STAGES),
    "pp4": (4, {"pipeline_parallel": 4}, STAGES),
    "pp2 ep2": (4, {"pipeline_parallel": 2, "expert_parallel": 2}, EXPERTS),
    "recomputed": (1, {"recompute": True}, 0),
    "pp2 recomputed": (2, {"pipeline_parallel": 2, "recompute": True}, STAGES),
    # each weight by itself, so that one that is read before it is gathered is an update old, or never waited for
    "dp2 beside": (2, {"overlap_grads": True, "overlap_weights": True, "bucket": 1}, EXPERTS),
}
# Ranks, each one's stages, and whether messages travel beside computation. Without it two ranks, whose neighbours are
# one, need pack 60.
INTERLEAVED = {
    "pp2 vp2": (2, 2, False),
    "pp2 vp2 beside": (2, 2, True),
    "pp4 vp2": (4, 2, False),
    "pp4 vp2 beside": (4, 2, True),
}


def ran(stack, folder, world, call, **given):
    """What all ranks wrote."""
    ended = [child.wait() for child in stack.ranks(world, f"v4_ranks:{call}", str(folder), **given)]
    assert [one.code for one in ended] == [0] * world, "\n".join(one.said for one in ended)
    return whole(folder)


def whole(folder):
    """(gradients, experts of each layer, step and row, each step's losses and norm) of all ranks, and of what several
    ranks have what they do not agree on: a stage's gradients, the embedding's on the first and the last, all losses.
    """
    gradients, routed, said, odd = {}, {}, [], set()
    for path in sorted(folder.glob("*.pt")):
        of = torch.load(path)
        for total, own in ((gradients, of["gradients"]), (routed, of["routed"])):
            odd |= {name for name in own.keys() & total.keys() if not torch.equal(own[name], total[name])}
            total |= own
        said.append(of["said"])
    return gradients, routed, said[0], odd | {"losses" for one in said if one != said[0]}


@pytest.fixture(scope="module")
def one(stack, tmp_path_factory):
    """Two steps on one rank."""
    return ran(stack, tmp_path_factory.mktemp("one"), 1, "step")


def same(found, want, limit):
    gradients, routed, _, odd = found
    assert odd == set() and gradients.keys() == want[0].keys() and routed.keys() <= want[1].keys()
    off = {name: float((gradients[name] - x).abs().max() / x.abs().max()) for name, x in want[0].items()}
    assert max(off.values()) <= limit, max(off, key=off.get)
    assert [name for name, experts in routed.items() if not torch.equal(want[1][name], experts)] == []


def test_a_step_has_a_gradient_for_every_parameter_and_experts_for_every_token(one):
    gradients, routed, said, odd = one
    assert odd == set() and [len(losses) for losses in said] == [5, 5]
    assert [name for name, gradient in gradients.items() if not gradient.any()] == []
    assert {layer for layer, *_ in routed} == {"2", "4", "6", "8", "mtp"}
    assert {int(experts.sum()) for experts in routed.values()} == {64 * 2}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_computes_what_one_rank_does(stack, one, tmp_path, name):
    world, layout, limit = LAYOUTS[name]
    found = ran(stack, tmp_path, world, "step", **layout)
    same(found, one, limit)
    for ours, theirs in zip(found[2], one[2], strict=True):
        assert ours == pytest.approx(theirs, rel=LOSS)


def test_muon_updates_it_as_on_one_rank(stack, tmp_path):
    runs = []
    for name, world, layout in (("one", 1, {}), ("both", *LAYOUTS["pp2 ep2"][:2])):
        (tmp_path / name).mkdir()
        runs.append(ran(stack, tmp_path / name, world, "step", optimizer="muon", steps=3, **layout)[2])
    (first, *later), (same, *updated) = runs
    assert same == pytest.approx(first, rel=LOSS) and len(later) == 2
    for ours, theirs in zip(updated, later, strict=True):
        assert ours == pytest.approx(theirs, rel=MUON)


@pytest.mark.parametrize("name", INTERLEAVED)
def test_stages_that_a_rank_has_in_turn_compute_it_too(stack, one, tmp_path, name):
    ranks, chunks, beside = INTERLEAVED[name]
    found = ran(stack, tmp_path, ranks, "interleaved", ranks=ranks, chunks=chunks, beside=beside)
    same(found, one, STAGES)
    assert found[2][0] == pytest.approx(one[2][0][:4], rel=LOSS)
