"""FLOPs per token against the decided figures, and against the arithmetic of the parameters."""

import pytest

from model.definition import flops, parameters
from model.families import deepseek_v4
from model.families.nam56r import SIZES

# GFLOP per token of a training step: (Megatron's formula, matrix products built)
DECIDED = {"nam56r": (22.52, 18.98), "nam56r_wide": (31.03, 25.94)}
PARTS = {"Mamba-3": 9.41, "MoE": 4.37, "logits": 2.82, "MTP": 1.08, "attention": 0.92}  # of nam56r


class Arguments:
    """Megatron's parsed command line; what is not set is None."""

    def __init__(self, **given):
        self.__dict__ |= given

    def __getattr__(self, name):
        return None


def by_megatron(name):
    """FLOPs per token by the function of Megatron-LM's training.py, cut out of it (the module wants a launcher's
    packages), with the symbols it counts: every attention as "*", the M²RNN as Mamba."""
    import ast
    from pathlib import Path

    import megatron.core

    source = (Path(megatron.core.__file__).parents[1] / "training" / "training.py").read_text()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    (counted,) = (node for node in functions if node.name == "num_floating_point_operations")
    space = {"is_hybrid_model": lambda args: True}
    exec(ast.get_source_segment(source, counted), space)
    size, s = SIZES[name], {"mla": "*", "dsa": "*", "moe": "E", "mamba3": "M", "m2rnn": "M"}
    arguments = Arguments(
        hybrid_layer_pattern="".join(s[layer.kind] for layer in size.layers) + "/*-" * size.mtp_depths,
        seq_length=size.sequence,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        ffn_hidden_size=size.ffn,
        mamba_state_dim=size.mamba.state,
        mamba_head_dim=size.mamba.head_dim,
        mamba_num_groups=size.mamba.groups,
        moe_ffn_hidden_size=size.experts.ffn,
        moe_shared_expert_intermediate_size=size.experts.shared_ffn,
        moe_router_topk=size.experts.topk,
        padded_vocab_size=size.vocab,
        mtp_num_layers=size.mtp_depths,
    )
    return space["num_floating_point_operations"](arguments, 1) / size.sequence


@pytest.mark.parametrize("name", DECIDED)
def test_both_figures(name):
    formula, built = DECIDED[name]
    assert flops.megatron(SIZES[name]) / 1e9 == pytest.approx(formula, abs=0.005)
    assert flops.total(SIZES[name]) / 1e9 == pytest.approx(built, rel=0.01)


@pytest.mark.upstream
@pytest.mark.parametrize("name", SIZES)
def test_megatrons_own_function_gives_its_figure(megatron, name):
    assert flops.megatron(SIZES[name]) == pytest.approx(megatron.call(by_megatron, name), rel=1e-12)


def test_parts():
    found = flops.built(SIZES["nam56r"])
    assert {part: found[part] / 1e9 for part in PARTS} == pytest.approx(PARTS, rel=0.01)


def test_the_published_speed_is_the_published_throughput():
    assert 289e12 / flops.megatron(SIZES["nam56r_wide"]) == pytest.approx(9_314, abs=1)
    assert 289e12 / flops.megatron(SIZES["nam56r"]) == pytest.approx(12_833, abs=1)


@pytest.mark.parametrize("name", SIZES)
def test_products_with_weights_are_six_flops_a_weight(name):
    """With documents of one token, whose causal mean is half a key."""
    size = SIZES[name]
    half_a_key, kinds = size.heads * (size.attention.qk_dim + size.attention.v_dim) // 2, size.kinds
    weights = {
        "logits": size.vocab * size.hidden * (1 + size.mtp_depths),
        "MoE": size.count("moe") * (kinds["moe"].number() - size.hidden)
        - (size.experts.count - size.experts.topk) * 2 * size.hidden * size.experts.ffn * size.count("moe"),
        "MTP": size.mtp_depths * (size.mtp.number() - 5 * size.hidden + half_a_key),
        "attention": (size.count("mla") + size.count("dsa")) * (kinds["mla"].number() - size.hidden + half_a_key),
    }
    found = flops.built(size, sequence=1)
    assert {part: found[part] for part in weights} == {part: 6 * count for part, count in weights.items()}


def test_sparse_attention_stops_growing_with_the_sequence():
    size = SIZES["nam56r"]
    each = flops.BACKWARD * 2 * size.heads * (size.attention.qk_dim + size.attention.v_dim)  # a key
    grown = flops.built(size, 8192)["attention"] - flops.built(size, 4096)["attention"]
    assert grown == pytest.approx(size.count("mla") * each * 2048)


# FLOPs of a training step over its tokens, {size: {sequence: FLOPs}}, by num_floating_point_operations of Megatron-LM's
# branch dev (d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1), run on V4's arguments, by its pattern and by its ratios alike
MEGATRON_DEV = {
    "v4_flash": {256: 86_765_948_928, 4096: 90_781_470_720, 65_536: 109_514_280_960},
    "v4_pro": {256: 309_449_299_968, 4096: 322_555_189_248, 65_536: 362_380_105_728},
    "v4_medium": {256: 20_990_803_968, 4096: 21_559_394_304, 65_536: 24_154_619_904},
    "v4_small": {256: 1_638_653_952, 4096: 1_672_003_584, 65_536: 2_067_922_944},
}


@pytest.mark.parametrize("name", MEGATRON_DEV)
def test_megatrons_figures_of_deepseek_v4(name):
    size = deepseek_v4.SIZES[name]
    assert {length: flops.megatron(size, length) for length in MEGATRON_DEV[name]} == MEGATRON_DEV[name]


def test_deepseek_v4s_products_and_its_published_figures():
    """Products are six FLOPs a weight that a token meets, and scores beside them; both figures agree within 1%, where
    Megatron gives the first queries a whole window and leaves out routers, hyper-connections and further streams."""
    size = deepseek_v4.FLASH
    found = flops.built(size)
    assert list(found) == list(size.flops_rows)
    assert sum(found.values()) == pytest.approx(flops.megatron(size), rel=0.01)
    experts = size.count("hash_moe") + size.count("topk_moe")
    met = size.kinds["hash_moe"].counts()["MoE"] - size.kinds["hash_moe"].idle() - size.hidden
    assert found["MoE"] == 6 * experts * met
    assert found["logits"] == 6 * 2 * size.vocab * size.hidden
    without = parameters.active(size, mtp=False) - parameters.by_part(size)["embedding"]
    assert sum(found.values()) - found["MTP"] > 6 * without


def test_deepseek_v4s_indexers_have_no_gradient_of_their_inputs():
    """Of what is multiplied with weights the forward pass and half of the backward one, of the scores all."""
    size, keys = deepseek_v4.FLASH, flops.Mean(4096).windows(4)
    i, per_layer = size.indexer, 1024 * 64 * 128 + 4096 * 64 + 4 * 4096 * 128
    assert keys == sum(s // 4 for s in range(1, 4097)) / 4096
    each = 2 * 2 * per_layer + 3 * 2 * i.heads * i.head_dim * keys
    assert flops.built(size)["indexers"] == pytest.approx(21 * each, rel=1e-12)
