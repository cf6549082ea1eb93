"""DeepSeek-V4 on a GPU: values, choices and gradients are a CPU's."""

import pytest
import torch
import v4_model as v4

from model.layers.common import blocks

LENGTHS = [21, 1, 0, 33, 9]


def made(c, seed, device):
    """Logits, MTP's logits, losses and gradients by name, and the entries and experts chosen; all on a CPU."""
    tokens, cu = (given.to(device) for given in v4.row(LENGTHS, c))
    model = v4.fill(v4.Whole(c), seed).double().to(device)
    said = model(tokens, cu, index_loss=True)
    losses = v4.losses(said, tokens, cu, c)
    sum(losses.values()).backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    values = {"logits": said["logits"], "mtp": said["mtp"], **losses, **grads}
    chosen = [a.chosen.sort().values for a in said["attended"] if a.chosen is not None]
    chosen += [experts.sort().values for experts in said["routed"]]
    return {name: value.detach().cpu() for name, value in values.items()}, [row.cpu() for row in chosen]


@pytest.mark.gpu
@pytest.mark.parametrize("queries", [8, 512])
@pytest.mark.parametrize("seed", [-1, 0, 3, 5])
def test_values_choices_and_gradients_are_those_of_a_cpu(monkeypatch, seed, queries):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setitem(blocks.QUERIES, "cuda", queries)
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    (values, chosen), (due, due_chosen) = made(c, seed + 1, "cuda"), made(c, seed + 1, "cpu")
    assert values.keys() == due.keys() and len(chosen) == len(due_chosen)
    for name, value in values.items():
        torch.testing.assert_close(value, due[name], rtol=1e-9, atol=1e-9 * float(due[name].abs().max()), msg=name)
    assert all(torch.equal(row, due_row) for row, due_row in zip(chosen, due_chosen, strict=True))
