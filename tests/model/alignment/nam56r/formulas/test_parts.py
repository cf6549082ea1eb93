"""Choices, what is followed of other ones, and what the formulas do not import."""

import ast
import math
from pathlib import Path

import torch

from model.alignment.nam56r import formulas
from model.alignment.nam56r.formulas import parts

SCORES = torch.tensor([[4.0, 3, 3 - 4e-6, -math.inf], [4.0, 3, 2, 1], [1.0, -math.inf, -math.inf, -math.inf]])


def chosen(*tokens):
    found = torch.zeros(len(tokens), 4, dtype=torch.bool)
    for token, numbers in enumerate(tokens):
        found[token, numbers] = True
    return found


def test_the_best_are_as_many_as_are_seen():
    assert torch.equal(parts.best(SCORES, 2), chosen([0, 1], [0, 1], [0]))


def test_what_rounding_may_have_made_is_followed_and_an_error_is_not():
    own = parts.best(SCORES, 2)
    other = chosen([0, 2], [0, 3], [1])
    assert torch.equal(parts.followed(own, other, SCORES), chosen([0, 2], [0, 1], [0]))
    assert torch.equal(parts.followed(own, None, SCORES), own)


def test_a_pair_turns_by_its_place():
    x = torch.ones(3, 1, 4, dtype=torch.float64)
    turned = parts.rope(x, neighbours=True)
    angles = torch.tensor([[s, s / math.sqrt(parts.BASE)] for s in range(3)], dtype=torch.float64)
    due = torch.cat((angles.cos() - angles.sin(), angles.sin() + angles.cos()), 1)
    torch.testing.assert_close(turned[:, 0], due, rtol=0, atol=1e-15)
    torch.testing.assert_close(parts.rope(x, neighbours=False), turned, rtol=0, atol=0)


def test_they_import_no_layer_and_none_of_upstreams():
    allowed = ("__future__", "collections", "dataclasses", "math", "torch", "typing")
    ours = ("model.alignment.comparison", "model.alignment.nam56r.formulas", "model.families")
    for path in Path(formulas.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                assert all(name.startswith(ours) or name.split(".")[0] in allowed for name in names), (path, names)
