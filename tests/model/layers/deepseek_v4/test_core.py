"""Core attention: every probability by hand, the same by any block, and memory that grows with the tokens alone."""

import math

import pytest
import torch
import v4_model as v4
from torch.utils._python_dispatch import TorchDispatchMode

from model.layers.common import blocks, documents
from model.layers.deepseek_v4.attention import Attention, Index, Shape
from model.layers.deepseek_v4.compressor import Visible, windows
from model.layers.deepseek_v4.core import core_attention

LENGTHS = [9, 1, 20, 7]


def inputs(ratio=4, topk=None, dtype=torch.float64, H=3, D=5):
    rng = torch.Generator().manual_seed(0)
    tokens, cu = sum(LENGTHS), torch.tensor([0, *LENGTHS]).cumsum(0).int()
    q, kv, sink = (torch.randn(s, generator=rng, dtype=dtype) for s in ((tokens, H, D), (tokens, D), (H,)))
    place, found = documents.positions(cu, tokens), windows(cu, tokens, ratio)
    entries = torch.randn(len(found.opens), D, generator=rng, dtype=dtype)
    chosen = None
    if topk:
        scores = torch.rand(tokens, len(entries), generator=rng)
        scores = scores.masked_fill(~Visible(found.begin, found.seen).mask(len(entries)), -1)
        best, slot = scores.topk(topk, -1)
        chosen = slot.masked_fill(best < 0, -1)
    leaves = [x.requires_grad_() for x in (q, kv, sink, entries)]
    return leaves, place, Visible(found.begin, found.seen, chosen)


def by_hand(q, kv, sink, entries, place, window, visible):
    """Outputs [T, H, D], and what each entry gets of the probability, [T][slot]."""
    outputs, masses = [], []
    for t in range(len(q)):
        near = [s for s in range(t + 1) if t - s < window and t - s <= place[t]]
        far = range(visible.begin[t], visible.begin[t] + visible.seen[t])
        if visible.chosen is not None:
            far = [slot for slot in visible.chosen[t].tolist() if slot >= 0]
        heads, mass = [], dict.fromkeys(far, 0.0)
        for h in range(q.shape[1]):
            held = [*(kv[s] for s in near), *(entries[e] for e in far)]
            e = [torch.exp(q[t, h] @ k / math.sqrt(q.shape[-1])) for k in held]
            p = [x / (sum(e) + torch.exp(sink[h])) for x in e]
            heads.append(sum(x * k for x, k in zip(p, held, strict=True)))
            for slot, x in zip(far, p[len(near) :], strict=True):
                mass[slot] += float(x.detach())
        outputs.append(torch.stack(heads))
        masses.append(mass)
    return torch.stack(outputs), masses


@pytest.mark.parametrize("queries", [1, 5, 64])
@pytest.mark.parametrize("topk", [None, 2, 6])
@pytest.mark.parametrize("window", [1, 4, 50])
def test_outputs_gradients_and_masses_are_the_formulas_by_any_block(monkeypatch, window, topk, queries):
    monkeypatch.setitem(blocks.QUERIES, "cpu", queries)
    leaves, place, visible = inputs(topk=topk)
    output, mass = core_attention(*leaves[:3], place, window, leaves[3], visible)
    expected, masses = by_hand(*leaves, place.tolist(), window, visible)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-13)
    dy = torch.randn_like(output)
    pairs = zip(torch.autograd.grad(output, leaves, dy), torch.autograd.grad(expected, leaves, dy), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert not mass.requires_grad
    for t, row in enumerate(masses):
        slots = range(mass.shape[1]) if topk is None else visible.chosen[t].tolist()
        found = {slot: float(m) for slot, m in zip(slots, mass[t], strict=True) if slot in row}
        assert found == pytest.approx(row, abs=1e-13) and mass[t].sum() == pytest.approx(sum(row.values()), abs=1e-13)


def test_without_entries_there_is_the_window_alone():
    (q, kv, sink, entries), place, visible = inputs()
    none = Visible(visible.begin, visible.seen * 0)
    output, mass = core_attention(q, kv, sink, place, 4)
    torch.testing.assert_close(output, core_attention(q, kv, sink, place, 4, entries, none)[0], rtol=0, atol=1e-14)
    assert mass is None


def test_logits_far_beyond_what_exp_takes():
    (q, kv, sink, entries), place, visible = inputs()
    for far in (2000 * q, -2000 * q):
        output, _ = core_attention(far, kv, sink + 900, place, 4, entries, visible)
        assert bool(output.isfinite().all())
        _, mass = core_attention(1e5 * far, kv, sink - 1e12, place, 4, entries, visible)
        assert not mass[~visible.mask(len(entries))].any()
        alone, _ = core_attention(1e5 * far, kv, sink - 1e12, place, 4)
        assert torch.equal(alone[place == 0], kv[place == 0, None].expand(-1, 3, -1))
    output, _ = core_attention(q, kv, sink + 900, place, 4, entries, visible)
    assert output.abs().max() < 1e-300  # the sink takes all and gives nothing


def test_bf16_is_computed_in_fp32_and_returned_as_given():
    (q, kv, sink, entries), place, visible = inputs(dtype=torch.bfloat16)
    output, mass = core_attention(q, kv, sink.float(), place, 4, entries, visible)
    wide, _ = core_attention(q.float(), kv.float(), sink.float(), place, 4, entries.float(), visible)
    assert output.dtype == torch.bfloat16 and mass.dtype == torch.float32 and torch.equal(output, wide.bfloat16())


def test_no_blocks_probabilities_are_kept_for_backward():
    (q, kv, sink, entries), place, visible = inputs(topk=6, H=8, D=2)
    assert max(v4.kept(lambda: core_attention(q, kv, sink, place, 30, entries, visible))) <= q.numel()


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x._is_view() is False:
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("kind", ["sliding", "csa", "hca"])
def test_4096_tokens_forward_and_backward_hold_no_square(kind):
    """Of a square of tokens, even for one head, no tensor has a sixteenth."""
    S, ratio = 4096, {"sliding": 0, "csa": 4, "hca": 128}[kind]
    index = Index(4, 8, 32) if kind == "csa" else None
    m = v4.room()
    ropes = [v4.rope(v4.Config(), compressed, m) for compressed in (False, True)]
    layer = v4.fill(Attention(Shape(32, 4, 16, 16, 2, 8, 128, ratio, index, *ropes)), 1)
    hidden = torch.randn(S, 1, 32, requires_grad=True)
    with Largest() as largest:
        found = layer(hidden, torch.tensor([0, S - 900, S]).int(), index_loss=True)
        loss = found.output.square().mean() + (0 if found.index_loss is None else found.index_loss.mean())
        loss.backward()
    assert largest.numel < S * S // 16 and bool(hidden.grad.isfinite().all())
