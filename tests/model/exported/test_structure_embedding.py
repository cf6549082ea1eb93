"""The structure-aware embedding: a sum of look-ups, projected; and that it can leave its zero start."""

import pytest
import torch

from model.data.columns.structure import FIELDS
from model.exported.structure_embedding import StructureEmbedding
from model.families.sizes import SIZES

TRAINED = SIZES["nam56r"].structure.fields


def fields(tokens=50):
    rng = torch.Generator().manual_seed(0)
    return {name: torch.randint(0, n, (tokens,), generator=rng) for name, n in FIELDS.items()}


@pytest.mark.parametrize(("factors", "count"), [(TRAINED, 230_976), (FIELDS, 255_552)])
def test_parameters_at_full_width(factors, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in StructureEmbedding(3584, factors).parameters()) == count


def test_it_is_one_hot_vectors_times_matrices():
    module = StructureEmbedding(12, FIELDS, bottleneck=8).double()
    torch.nn.init.normal_(module.projection.weight)
    given = fields()
    hot = torch.cat([torch.nn.functional.one_hot(given[name], n).double() for name, n in FIELDS.items()], dim=1)
    expected = hot @ torch.cat([module.embeddings[name].weight for name in FIELDS]) @ module.projection.weight.T
    torch.testing.assert_close(module(given), expected)


def test_every_parameter_learns_within_two_steps():
    torch.manual_seed(0)
    module = StructureEmbedding(12, FIELDS)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    assert bool((module(fields()) == 0).all())
    learning = []
    for _ in range(2):
        optimizer.zero_grad()
        (module(fields()) - 1).square().mean().backward()
        learning.append({name for name, p in module.named_parameters() if p.grad.norm() > 0})
        optimizer.step()
    assert learning == [{"projection.weight"}, {name for name, _ in module.named_parameters()}]


def test_one_zero_factor_and_no_more():
    """Two zero factors multiply each other's gradient by 0 at every step: the ancestor's structure embedding."""
    module = StructureEmbedding(12, TRAINED)
    zero = [name for name, p in module.named_parameters() if not p.any()]
    assert zero == ["projection.weight"]


def test_a_field_that_the_batch_lacks_is_named():
    given = fields()
    del given["dep_level"]
    with pytest.raises(ValueError, match="dep_level"):
        StructureEmbedding(12, TRAINED)(given)
