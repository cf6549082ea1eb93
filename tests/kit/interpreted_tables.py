"""Run by test_tables in a process of its own: Megatron's rotary embedding of packed documents with tables made once.

Prints {what: [largest difference from Megatron's result, from its gradient, upstream's calls]} and of the tiny model
{operator: times in a forward}, losses and gradients, with what is kept and without, as JSON; exits 77 where something
is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import collections
import hashlib
import importlib
import json

import interpreted
import torch

interpreted.begin(patched=True)

from megatron.core.models.common.embeddings import rope_utils
from torch.utils._python_dispatch import TorchDispatchMode

from model.layers.attention import rotary, tables
from model.layers.common import documents
from reproducers.probe.lanes import megatron
from reproducers.probe.ranks import Rank

NAMES = ("_apply_rotary_pos_emb_thd", "_apply_rotary_pos_emb_bshd")
whole = {name: getattr(rope_utils, name) for name in NAMES}
tables.stand_in()
ours = {name: getattr(rope_utils, name) for name in NAMES}
calls = []


def counted(*arguments, **named):
    calls.append(named)
    return whole[NAMES[0]](*arguments, **named)


ours[NAMES[0]].upstream = counted


class Alone:
    """The group of one rank, or of two."""

    def __init__(self, ranks=1):
        self.ranks = ranks

    def size(self):
        return self.ranks

    def rank(self):
        return 0


group, pair = Alone(), Alone(2)
draw = torch.Generator().manual_seed(1)
lengths = torch.tensor([0, 4, 8, 16], dtype=torch.int32)
angles = 3 * torch.randn(64, 1, 1, 8, generator=draw)
frequencies = torch.cat((angles, angles), dim=-1)
found = {}


def compare(
    what,
    cu_seqlens=lengths,
    freqs=frequencies[:20],
    heads=3,
    tokens=16,
    width=16,
    dtype=torch.float16,
    mscale=1.0,
    paired=True,
    cp_group=group,
):
    calls.clear()
    results = []
    x = torch.randn(tokens, heads, 32, generator=draw).to(dtype)
    up = torch.randn(tokens, heads, width, generator=draw).to(dtype)
    for functions in (ours, whole):
        for name in NAMES:
            setattr(rope_utils, name, functions[name])
        t = x.clone().requires_grad_()
        out = getattr(rope_utils, NAMES[0])(
            t[..., 32 - width :], cu_seqlens, freqs, mla_rotary_interleaved=paired, mscale=mscale, cp_group=cp_group
        )
        results.append((out, *torch.autograd.grad(out, t, up)))
    found[what] = [float((a.float() - b.float()).abs().max()) for a, b in zip(*results, strict=True)] + [len(calls)]


compare("queries")
compare("keys of the same", heads=1)
compare("a part taken anew", freqs=frequencies[:20])
compare("pairs apart", paired=False)
compare("another scale", mscale=1.25)
compare("in fp32", dtype=torch.float32)
compare("in fp16 again")
compare("more frequencies", freqs=frequencies[:40])
compare("frequencies from elsewhere", freqs=frequencies[1:21])
compare("a packed batch's frequencies", freqs=frequencies[:16])
compare("other ranks", freqs=frequencies[:21], tokens=8, cp_group=pair)
compare("wider", freqs=torch.cat((frequencies, frequencies), dim=-1), width=32)
compare("not turned whole", width=32)
compare("nor again", width=32)
compare("another batch", lengths.clone())
with torch.inference_mode():
    other = lengths.clone()
    call = {"mla_rotary_interleaved": True, "mscale": 1.0, "cp_group": group}
    ours[NAMES[0]](torch.zeros(16, 1, 16), lengths, frequencies[:30], **call)
    ours[NAMES[0]](torch.zeros(16, 1, 16), other, frequencies[:20], **call)
    untold = frequencies.clone()
compare("asked in inference mode before", freqs=frequencies[:30], dtype=torch.float32)
compare("lengths of inference mode", other)
compare("frequencies of inference mode", freqs=untold)
lengths[1] = 5
compare("lengths changed")
compare("and again")
frequencies += 1
compare("frequencies changed")
captured, documents._captured = documents._captured, lambda x: True
compare("captured")
documents._captured = captured
compare("not captured")
try:
    compare("fewer tokens", tokens=15)
except RuntimeError:  # Megatron's, from ours or from its own function
    found["fewer tokens"] = [0.0, 0.0, len(calls)]
for name in NAMES:
    setattr(rope_utils, name, ours[name])
ours[NAMES[1]](torch.zeros(4, 1, 1, 16), frequencies[:4])
forgotten = ours[NAMES[0]]._tables is None


def rotated(x, cos, sin, paired, back):
    """What the kernel does: interpreted it would take a minute of the model's."""
    a, b = (x[..., ::2], x[..., 1::2]) if paired and not back else x.chunk(2, dim=-1)
    (cos_a, cos_b), (sin_a, sin_b) = cos.chunk(2, dim=-1), sin.chunk(2, dim=-1)
    if back:
        low, high = a * cos_a + b * sin_b, b * cos_b - a * sin_a
        return torch.stack((low, high), dim=-1).flatten(-2) if paired else torch.cat((low, high), dim=-1)
    return torch.cat((a * cos_a - b * sin_a, b * cos_b + a * sin_b), dim=-1)


rotary.rotated = rotated
megatron.start_megatron(importlib.import_module, 0, Rank(0, 1))

import tiny

others = {"mamba3": "torch_rows", "m2rnn": "torch", "qkv": "joined"}
for name in NAMES:  # as upstream has them: the path puts its own there
    setattr(rope_utils, name, whole[name])
model = tiny.fresh(row=tiny.TOKENS, paths={"rope": "triton"} | others)
getattr(rope_utils, NAMES[0]).upstream = counted


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = collections.Counter()

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.operators[operator.overloadpacket.__name__] += 1
        return operator(*arguments, **(named or {}))


def step():
    """The operators of a forward, the losses, and a digest of all gradients."""
    model.zero_grad()
    batch = tiny.batch()
    with Counted() as counted:
        losses = model(packed_seq_params=tiny.packed(), **batch)
    losses.sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    digest = hashlib.sha256(b"".join(gradient.numpy().tobytes() for gradient in gradients.values()))
    return counted.operators, losses.tolist(), [sorted(gradients), digest.hexdigest()]


calls.clear()
before = len(documents._made)
kept = step()
after = len(calls), len(documents._made) - before, forgotten
documents.once = lambda cu_seqlens, what, make: make()
embeddings = {id(module.rotary_pos_emb) for module in model.modules() if hasattr(module, "rotary_pos_emb")}
print(json.dumps([found, kept, step(), after, len(embeddings)]))
