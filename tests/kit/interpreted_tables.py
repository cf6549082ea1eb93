"""Run by test_tables in a process of its own: Megatron's rotary embedding of packed batches with tables made once.

Prints {what: [largest difference from Megatron's result, from its gradient, upstream's calls]} as JSON; exits 77 where
something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json

import interpreted
import torch

interpreted.begin(patched=True)

from megatron.core.models.common.embeddings import rope_utils

from model.layers.attention import tables
from model.layers.attention.rotary import rotating


class Alone:
    """The group of one rank."""

    def size(self):
        return 1

    def rank(self):
        return 0


theirs = rope_utils._apply_rotary_pos_emb_thd
whole = rope_utils._apply_rotary_pos_emb_bshd
calls = []


def counted(*arguments, **named):
    calls.append(arguments)
    rope_utils._apply_rotary_pos_emb_bshd = rotating(whole, packed.keep)
    try:
        return theirs(*arguments, **named)
    finally:
        rope_utils._apply_rotary_pos_emb_bshd = whole


packed = tables.Packed(counted)
group = Alone()
draw = torch.Generator().manual_seed(1)
lengths = torch.tensor([0, 5, 6, 17], dtype=torch.int32)
angles = 3 * torch.randn(64, 1, 1, 8, generator=draw)
frequencies = torch.cat((angles, angles), dim=-1)
found = {}


def compare(what, heads, cu_seqlens, freqs, dtype=torch.float16, mscale=1.0, paired=True):
    calls.clear()
    results = []
    x = torch.randn(17, heads, 32, generator=draw).to(dtype)
    up = torch.randn(17, heads, 16, generator=draw).to(dtype)
    for function in (packed, theirs):
        t = x.clone().requires_grad_()
        out = function(t[..., 16:], cu_seqlens, freqs, mla_rotary_interleaved=paired, mscale=mscale, cp_group=group)
        results.append((out, *torch.autograd.grad(out, t, up)))
    found[what] = [float((a.float() - b.float()).abs().max()) for a, b in zip(*results, strict=True)] + [len(calls)]


compare("queries", 3, lengths, frequencies[:20])
compare("keys of the same", 1, lengths, frequencies[:20])
compare("another layer", 3, lengths, frequencies[:20])
compare("another scale", 3, lengths, frequencies[:20], mscale=1.25)
compare("pairs apart", 3, lengths, frequencies[:20], paired=False)
compare("in fp32", 3, lengths, frequencies[:20], dtype=torch.float32)
compare("more frequencies", 3, lengths, frequencies[:40])
compare("a packed batch's frequencies", 3, lengths, frequencies[:17])
compare("another batch", 3, lengths.clone(), frequencies[:20])
with torch.inference_mode():
    other = lengths.clone()
    packed(torch.zeros(17, 1, 16), lengths, frequencies[:30], mla_rotary_interleaved=True, mscale=1.0, cp_group=group)
    packed(torch.zeros(17, 1, 16), other, frequencies[:20], mla_rotary_interleaved=True, mscale=1.0, cp_group=group)
compare("asked in inference mode before", 3, lengths, frequencies[:30], dtype=torch.float32)
compare("lengths of inference mode", 3, other, frequencies[:20])
lengths[1] = 4
compare("lengths changed", 3, lengths, frequencies[:20])
compare("and again", 3, lengths, frequencies[:20])
frequencies += 1
compare("frequencies changed", 3, lengths, frequencies[:20])
tables._capturing = lambda t: True
compare("captured", 3, lengths, frequencies[:20])
print(json.dumps(found))
