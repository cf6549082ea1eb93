"""The step's settings as the optimizer holds them."""

import pytest

pytestmark = pytest.mark.upstream
# Beside what has one dimension: lookup tables, and what starts elsewhere than at zero, to which decay would pull it.
SPARED = ("M2RNN", "W", "D"), ("Mamba-3", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o")
TABLES = {"embedding.word_embeddings.weight", "ngram.table.weight"} | {
    f"structure.embeddings.{field}.weight" for field in ("structure", "dep_level")
}


def value(ended):
    assert ended.code == 0, ended.said
    return ended.value


@pytest.mark.parametrize("bf16", [False, True])
def test_weight_decay_spares_what_the_layers_mark(stack, text, bf16):
    decays = value(stack.run("trained:decays", str(text), bf16))
    assert {name for name in TABLES if name not in decays} == set()
    assert {name: decays[name] for name in TABLES} == dict.fromkeys(TABLES, 0)
    for _, *own in SPARED:
        marked = {name: decay for name, decay in decays.items() if name.rpartition(".")[2] in own}
        assert {name.rpartition(".")[2] for name in marked} == set(own)
        assert set(marked.values()) == {0}
    matrices = [name for name in decays if name.endswith(("proj.weight", "fc1.weight", "fc2.weight", "conv_weight"))]
    assert len(matrices) > 60
    assert {decays[name] for name in [*matrices, "output_layer.weight", "ngram.projection.weight"]} == {0.1}


def test_a_checkpoint_of_other_groups_loads_and_follows_this_runs(stack, text, tmp_path):
    """As those from before the marks were read."""
    before = value(stack.run("trained:other_groups", str(text), str(tmp_path), False))
    after = value(stack.run("trained:other_groups", str(text), str(tmp_path), True))
    assert {name for name in TABLES if before[name]["decay"]} == TABLES
    assert {name for name in TABLES if after[name]["decay"]} == set()
    for content in ("moments", "step"):
        assert {name: one[content] for name, one in after.items()} == {n: one[content] for n, one in before.items()}
