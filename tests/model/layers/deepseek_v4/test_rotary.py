"""Frequencies against the formula in double precision and transformers', rotations against pairs one by one."""

import math
from dataclasses import replace

import pytest
import torch
import v4_hf
import v4_model as v4

from model.alignment.deepseek_v4 import formulas
from model.layers.deepseek_v4.rotary import COMPRESSED, PLAIN, Rope, Yarn, rotate

PUBLISHED = replace(v4.Config(), rope_width=64, original=65_536)
LIKE = torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize(("rope", "compressed"), [(PLAIN, False), (COMPRESSED, True)])
def test_the_published_frequencies(rope, compressed):
    expected = torch.tensor(formulas.frequencies(PUBLISHED, compressed), dtype=torch.float64)
    torch.testing.assert_close(rope.frequencies(LIKE), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(rope.frequencies(torch.zeros(())), expected.float(), rtol=5e-7, atol=0)


def test_the_compressed_layers_slowest_pair_is_sixteen_times_slower_and_the_fastest_as_it_was():
    plain, scaled = (r.frequencies(LIKE) for r in (replace(COMPRESSED, yarn=None), COMPRESSED))
    assert scaled[0] == plain[0] == 1 and scaled[-1] == pytest.approx(float(plain[-1]) / 16, rel=1e-14)
    assert plain[1] == pytest.approx(160_000 ** (-2 / 64), rel=1e-14)


@pytest.mark.parametrize("original", [5, 64, 4096, 65_536])
@pytest.mark.parametrize("width", [2, 4, 16, 64])
def test_yarn_is_the_formulas_also_where_its_ramp_has_no_width(width, original):
    c = replace(v4.Config(), rope_width=width, original=original)
    expected = torch.tensor(formulas.frequencies(c, True), dtype=torch.float64)
    found = Rope(width, 160_000.0, Yarn(original=original)).frequencies(LIKE)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_yarns_ramp_ends_with_the_channels():
    """Low is 0; high by the formula would be 11."""
    found = Rope(8, 10_000.0, Yarn(4.0, 100, 32.0, 1e-9)).frequencies(LIKE)
    assert found.tolist() == pytest.approx([10_000 ** (-i / 4) * (1 - i / 7 * 0.75) for i in range(4)], rel=1e-14)


@pytest.mark.parametrize("compressed", [False, True])
def test_transformers_has_the_same_tables(compressed):
    v4_hf.needed()
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

    scaling = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65_536}
    theirs = DeepseekV4RotaryEmbedding(DeepseekV4Config(rope_parameters={**scaling, "beta_fast": 32, "beta_slow": 1}))
    positions = torch.tensor([0, 1, 5, 127, 4095])
    tables = theirs(torch.zeros(1), positions[None], layer_type="compress" if compressed else "main")
    for ours, other in zip(
        (COMPRESSED if compressed else PLAIN).table(positions, torch.zeros(())), tables, strict=True
    ):
        torch.testing.assert_close(ours, other[0], rtol=0, atol=3e-4)  # 4095 radians in fp32 are known to 2.4e-4


@pytest.mark.parametrize("compressed", [False, True])
def test_pairs_of_the_last_channels_turn_by_position(compressed):
    c, m = replace(v4.Config(), rope_width=8), v4.room()
    x = torch.randn(5, 2, 11, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 0, 700])
    found = rotate(x, v4.rope(c, compressed, m).table(positions, x))
    for t, position in enumerate(positions.tolist()):
        for h in range(2):
            torch.testing.assert_close(found[t, h], formulas.rope(x[t, h], position, c, compressed), rtol=0, atol=1e-12)
    assert torch.equal(found[..., :3], x[..., :3]) and torch.equal(found[0], x[0])


def test_the_inverse_turns_back():
    x = torch.randn(4, 3, 70, dtype=torch.float64)
    table = COMPRESSED.table(torch.tensor([0, 3, 90, 100_000]), x)
    torch.testing.assert_close(rotate(rotate(x, table), table, inverse=True), x, rtol=0, atol=1e-14)
    assert not torch.allclose(rotate(x, table)[1:], x[1:])


def test_products_of_rotated_vectors_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 64, dtype=torch.float64)

    def at(x, position):
        return rotate(x, COMPRESSED.table(torch.tensor([position]), x))[0]

    assert float(at(q, 900) @ at(k, 800)) == pytest.approx(float(at(q, 100) @ at(k, 0)), rel=1e-9)


def test_bf16_is_rotated_in_fp32_and_rounded_once():
    x = torch.randn(1, 2, dtype=torch.bfloat16)
    rope = Rope(2, 10_000.0)
    found = rotate(x, rope.table(torch.tensor([1]), x))
    e, o = x[0].double()
    exact = torch.stack((e * math.cos(1) - o * math.sin(1), o * math.cos(1) + e * math.sin(1)))
    assert found.dtype == torch.bfloat16 and torch.equal(found[0], exact.bfloat16())


@pytest.mark.parametrize("width", [0, 1, 7])
def test_channels_without_a_partner_are_refused(width):
    with pytest.raises(ValueError, match=rf"\b{width}\b"):
        Rope(width, 10_000.0)


def test_a_vector_with_fewer_channels_than_turn_is_refused():
    x = torch.zeros(1, 4)
    with pytest.raises(ValueError, match=r"\b8\b.*\b4\b"):
        rotate(x, Rope(8, 10_000.0).table(torch.tensor([0]), x))
