"""FLOPs per token against the decided figures, and against the arithmetic of the parameters."""

import pytest

from model.definition import flops
from model.families.sizes import SIZES

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
