"""transformers' model of a size: its names are the map's, its constants its own."""

import pytest
import torch
import v4_hf
import v4_table

from model.alignment.deepseek_v4 import drawn, public
from model.families.sizes import SIZES
from model.saved import public as names

TINY = SIZES["v4_tiny"]


@pytest.fixture(autouse=True)
def _installed():
    v4_hf.needed()


@pytest.mark.parametrize("name", [name for name, size in SIZES.items() if size.has_public])
def test_the_map_has_every_tensor_of_it_in_its_shape_and_mtp_besides(name):
    size = SIZES[name]
    with torch.device("meta"):
        made = public.require().DeepseekV4ForCausalLM(public.config(size, {}))
    shapes = {name: tuple(tensor.shape) for name, tensor in public.tensors(made).items()}
    mapped = names.shapes(size)
    assert shapes == {name: shape for name, shape in mapped.items() if not name.startswith("model.mtp.")}
    assert sum(name.startswith("model.mtp.") for name in mapped) > 20


def test_weights_are_its_own_after_a_round_trip():
    made, given = public.model(public.config(TINY, {})), drawn.weights(TINY, 3)
    public.fill(made, given)
    held = {name: tensor.detach() for name, tensor in public.tensors(made).items()}
    lacking = {name: tensor for name, tensor in given.items() if name not in held}
    back = names.exported(TINY, names.imported(TINY, held | lacking))
    assert all(
        torch.equal(back[name], tensor) and torch.equal(back[name], given[name]) for name, tensor in held.items()
    )
    del given["lm_head.weight"]
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        public.fill(made, given)
    with pytest.raises(ValueError, match=r"lm_head\.weight is \[320, 128\], not \[3\]"):
        public.fill(made, given | {"lm_head.weight": torch.zeros(3)})


def test_its_constants_do_not_follow_ours():
    changed = {
        ("attention", "rope_theta"): 1.0,
        ("attention", "compress_rope_theta"): 40_000.0,
        ("attention", "yarn", "factor"): 4.0,
        ("rms_norm_eps",): 0.1,
        ("hyper", "eps"): 0.1,
        ("experts", "clamp"): 1.0,
    }
    made, other = (public.config(size, {}) for size in (TINY, v4_table.sized(changed)))
    assert made.to_dict() == other.to_dict()
    assert made.rope_parameters["compress"]["rope_theta"] == 160_000.0
    assert public.config(TINY, drawn.FELT).hc_eps == drawn.FELT["hc_eps"] == drawn.felt(TINY).hyper.eps


def test_a_draw_is_of_its_seed_and_its_tables_are_of_different_experts():
    one, same, other = (drawn.weights(TINY, seed) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    table = one["model.layers.0.mlp.gate.tid2eid"]
    assert table.dtype == torch.int32 and all(len(set(row)) == TINY.experts.topk for row in table.tolist())
    assert {expert for row in table.tolist() for expert in row} == set(range(TINY.experts.count))


def test_entries_of_another_document_are_not_seen():
    biases = torch.full((2, 1, 2, 2), -torch.inf)
    biases[0, 0, 1, 0] = biases[1, 0, 1, :] = 0
    assert public.masks(biases).tolist() == [
        [False] * 4,
        [True, False, False, False],
        [False] * 4,
        [False, False, True, True],
    ]
