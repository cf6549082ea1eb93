"""What is drawn."""

import torch

from model.alignment.nam56r import drawn
from model.families.nam56r import TINY


def test_a_draw_is_of_its_seed_and_has_every_parameter():
    one, same, other = (drawn.weights(TINY, seed, faint=False) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name]) for name in one)
    due = {p + key: shape for p, kind in TINY.placed for key, shape in kind.shapes().items()}
    assert {name: tuple(tensor.shape) for name, tensor in one.items()} == due
    assert {tensor.dtype for tensor in one.values()} == {torch.float32}


def test_the_second_variants_floor_and_weights_of_losses_are_felt():
    size = drawn.felt(TINY)
    assert size.mamba.A_floor == drawn.FELT_FLOOR and TINY.mamba.A_floor == drawn.A_FLOOR
    assert {name: size.coefficients[name] for name in drawn.FELT} == drawn.FELT


def test_of_the_second_variant_what_norms_take_is_faint():
    plain, faint = (drawn.weights(TINY, 0, faint) for faint in (False, True))
    name, first, wide = "decoder.layers.2.mixer.mamba.in_proj.weight", 512, 2 * 2 * 4 * 32
    of_bc = slice(first, first + wide)
    assert torch.equal(faint[name][of_bc], plain[name][of_bc] * drawn.FAINT)
    assert torch.equal(faint[name][:first], plain[name][:first])
    assert torch.equal(faint[name][first + wide :], plain[name][first + wide :])
