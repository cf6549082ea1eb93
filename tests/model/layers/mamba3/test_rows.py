"""Rows with decay resets against the packed stream: the same module, the same documents."""

import mamba3_cases as cases
import pytest
import torch

from model.layers.mamba3 import rows as mamba3_rows
from model.layers.mamba3.mixer import build_mamba3

LENGTH, ROWS = 32, 3
CUTS = (0, 5, 6, 32, 40, 64, 96)  # row starts are cuts; documents of 1 token and of a whole row


@pytest.fixture(autouse=True)
def tree():
    cases.upstream_tree()


def mixer(dtype=torch.float64):
    torch.manual_seed(0)
    made = build_mamba3(48, d_state=16, headdim=16, ngroups=2, rank=2, chunk=8, path="torch").to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def stream(dtype=torch.float64):
    return torch.randn(LENGTH * ROWS, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def both(made, hidden):
    """Output, gradient of the hidden states and of every parameter: packed, and in rows."""
    bounds, results = cases.bounds(*CUTS), []
    for run in (lambda x: made(x, bounds), lambda x: mamba3_rows.run_rows(made.mamba, x, bounds, LENGTH)):
        leaf = hidden.clone().requires_grad_()
        out = run(leaf)
        gradients = torch.autograd.grad(out, [leaf, *made.parameters()], torch.cos(out.detach()))
        results.append([out.detach(), *gradients])
    return results


def test_rows_are_the_packed_stream():
    packed, rows = both(mixer(), stream())
    assert max(map(cases.error, rows, packed)) < 1e-6  # the module goes through fp32


def test_without_the_reset_documents_would_meet(monkeypatch):
    monkeypatch.setattr(mamba3_rows, "RESET", 0.0)
    packed, rows = both(mixer(), stream())
    assert max(map(cases.error, rows, packed)) > 1e-2


def test_another_document_changes_nothing_of_this_one():
    made, hidden, bounds = mixer(), stream(), cases.bounds(*CUTS)
    before = mamba3_rows.run_rows(made.mamba, hidden, bounds, LENGTH)
    hidden = hidden.clone()
    hidden[6:32] += 1.0
    after = mamba3_rows.run_rows(made.mamba, hidden, bounds, LENGTH)
    changed = (after - before).abs().amax(1) > 1e-12
    assert changed[6:32].all() and not changed[:6].any() and not changed[32:].any()
