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


def test_every_hyperparameter_reaches_the_optimizer_and_the_losses(stack, text):
    fields = {
        "bf16": False,
        "steps": 8,
        "warmup": 2,
        "schedule": "WSD",
        "decay_steps": 4,
        "floor": 0.5,
        "learning_rate": 1.0,
        "betas": [0.8, 0.7],
        "epsilon": 1e-5,
        "weight_decay": 0.3,
        "clip": 2.0,
        "mtp_loss_coeff": 0.2,
        "aux_loss_coeff": 0.01,
        "indexer_loss_coeff": 1.0,
        "bias_update_rate": 0.02,
    }
    found = value(stack.run("trained:settings", str(text), **fields))
    falling = [0.5 + 0.5 * (1 - (step / 4) ** 0.5) for step in (1, 2, 3, 4)]
    assert found["rates"] == pytest.approx([0.5, 1, 1, 1, *falling])
    assert (found["eps"], found["betas"], found["clip"], found["decays"]) == (1e-5, [0.8, 0.7], 2.0, [0, 0.3])
    assert found["coefficients"] == [0.2, 0.01, 1.0, 0.02]
