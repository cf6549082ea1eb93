"""Hyperparameters: their bounds, those left to the size, and which of them decide what a step learns."""

import pytest
from pydantic import ValidationError

from model.definition.recipes import RECIPES, Recipe
from model.families.sizes import SIZES

TINY = SIZES["nam56r_tiny"]


@pytest.mark.parametrize(
    "bad",
    [
        {"betas": (0.9, 1.0)},
        {"epsilon": 0},
        {"weight_decay": -0.1},
        {"clip": 0},
        {"floor": 1.5},
        {"optimizer": "sgd"},
        {"muon_momentum": 1.0},
        {"muon_steps": 0},
        {"learning_rate": float("nan")},
        {"indexer_loss_coeff": 0},
        {"steps": 0},
        {"schedule": "exponential"},
        {"schedule": "WSD"},
        {"decay_steps": 3},
        {"schedule": "WSD", "decay_steps": 95, "warmup": 10},
    ],
)
def test_values_out_of_bounds_are_no_recipe(bad):
    with pytest.raises(ValidationError):
        Recipe(size="nam56r_tiny", **bad)


def test_a_recipe_changes_the_coefficients_of_its_size_and_nothing_else():
    recipe = Recipe(size="nam56r_tiny", mtp_loss_coeff=0.3, aux_loss_coeff=0, bias_update_rate=0, indexer_loss_coeff=1)
    size = recipe.sized()
    assert (size.mtp_loss_coeff, size.experts.aux_loss_coeff, size.experts.bias_update_rate) == (0.3, 0, 0)
    assert size.indexer.loss_coeff == 1
    assert size != TINY and size.same_model(TINY.model_dump(mode="json"))
    assert not size.same_model(TINY.model_copy(update={"mtp_depths": 2}).model_dump(mode="json"))
    assert not size.same_model({"name": "nam56r_tiny"})


@pytest.mark.parametrize("name", RECIPES)
def test_a_whole_recipe_names_what_it_leaves_to_its_size(name):
    recipe = RECIPES[name]
    assert recipe.whole().sized() == recipe.sized()
    left = {field for field, value in recipe.whole().model_dump().items() if value is None}
    assert left == {"decay_steps"}


def test_hyperparameters_are_not_where_or_how_often():
    one = Recipe(size="nam56r_tiny").whole()
    same = one.changed(save_every=7, evaluate_every=3, name="x", ranks=4, expert_parallel=2, micro_batch=2, bf16=False)
    assert one.hyperparameters() == same.hyperparameters()
    other = one.changed(betas=(0.8, 0.9), epsilon=1e-6, init_seed=1, aux_loss_coeff=0.1, steps=101)
    differ = {name for name, value in other.hyperparameters().items() if one.hyperparameters()[name] != value}
    assert differ == {"betas", "epsilon", "init_seed", "aux_loss_coeff", "steps"}
