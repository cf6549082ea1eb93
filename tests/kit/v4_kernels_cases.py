"""DeepSeek-V4's kernels beside their torch twins in fp64: errors of every result and gradient, relative to the greatest
entry."""

import torch

from model.layers.common import documents
from model.layers.common.norm import rms_norm
from model.layers.deepseek_v4 import compressor, core, experts, hyper
from model.layers.deepseek_v4 import indexer as indexers
from model.layers.deepseek_v4.compressor import Visible, windows
from model.layers.deepseek_v4.hybrid import kernels as attention
from model.layers.deepseek_v4.hybrid.kernels import hyper as kernels
from model.layers.deepseek_v4.hybrid.kernels import swiglu
from model.layers.deepseek_v4.rotary import Rope, rotate


class Drawn:
    """Numbers of one seed, on ``device``; ``dtype`` of what a model of that dtype has in it, the rest fp32."""

    def __init__(self, seed, device, dtype):
        self.rng = torch.Generator().manual_seed(seed)
        self.device, self.dtype = device, dtype

    def __call__(self, *shape, wide=False, scale=1.0):
        made = scale * torch.randn(*shape, generator=self.rng)
        return made.to(self.device, torch.float32 if wide else self.dtype).requires_grad_()

    def bounds(self, lengths):
        return torch.tensor([0, *lengths]).cumsum(0).int().to(self.device)

    def lengths(self, most):
        """Documents, an empty one and one of a single token among them."""
        drawn = torch.randint(1, most, (3,), generator=self.rng).tolist()
        return [drawn[0], 0, 1, *drawn[1:]]


def beside(ours, theirs, leaves, draw, kept=(), apart=None):
    """Errors [result…, gradient…] of functions of ``leaves``, and of the gradients that random numbers from above give;
    ``kept``: a mask for each result, of what is compared; ``apart``: how errors are measured."""
    apart = apart or _error
    found = ours(*leaves)
    above = [draw(*x.shape).detach().to(x.dtype) for x in found]
    above = [g if keep is None else g * keep for g, keep in zip(above, kept or [None] * len(found), strict=True)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    due = theirs(*wide)
    pairs = list(zip(found, due, kept or [None] * len(found), strict=True))
    pairs = [(a, b) if keep is None else (a * keep, b * keep) for a, b, keep in pairs]
    gradients = torch.autograd.grad(found, leaves, above)
    pairs += zip(gradients, torch.autograd.grad(due, wide, [g.double() for g in above]), strict=True)
    assert all(a.dtype == x.dtype for a, x in zip(gradients, leaves, strict=True))
    return [apart(a, b) for a, b in pairs]


def _norm(found, due):
    """Of the whole tensor: where relu's argument is next to 0, one gradient or another is there or not."""
    return float((found.detach().double() - due).norm() / due.detach().norm().clamp(min=1e-30))


def _error(found, due):
    return float((found.detach().double() - due).abs().max() / due.detach().abs().max().clamp(min=1e-30))


def attended(draw, lengths, H, D, window, ratio, topk, turned):
    """Core attention; ``ratio`` 0 for a window alone, ``topk`` 0 for all entries."""
    cu, T = draw.bounds(lengths), sum(lengths)
    place, leaves = documents.positions(cu, T), [draw(T, H, D), draw(T, D), draw(H, wide=True)]
    table = Rope(turned, 100.0).table(place, leaves[0]) if turned else None
    visible = None
    if ratio:
        found = windows(cu, T, ratio)
        leaves.append(draw(len(found.opens), D))
        visible = Visible(found.begin, found.seen)
        if topk:
            scores = torch.rand(T, len(found.opens), generator=draw.rng).to(draw.device)
            visible = Visible(found.begin, found.seen, indexers.choose(scores, visible, topk))
    masses = []

    def ours(q, kv, sink, entries=None):
        output, mass = attention.core_attention(q, kv, sink, place, window, entries, visible, table, bool(topk))
        masses.append(mass)
        return (output,)

    def theirs(q, kv, sink, entries=None):
        output, mass = core.core_attention(q, kv, sink, place, window, entries, visible)
        masses.append(mass)
        return (output if table is None else rotate(output, tuple(x.double() for x in table), inverse=True),)

    errors = beside(ours, theirs, leaves, draw)
    return errors if not topk else [*errors, _error(*masses)]


def normed(draw, shape, weighed, turned):
    """RMSNorm and rotation."""
    leaves = [draw(*shape), *([draw(shape[-1], wide=True)] if weighed else [])]
    table = Rope(turned, 100.0).table(torch.arange(shape[0], device=draw.device), leaves[0]) if turned else None

    def theirs(x, weight=None):
        y = rms_norm(x, weight, 1e-3)
        return (rotate(y, tuple(part.double() for part in table)) if turned else y,)

    return beside(lambda x, w=None: (attention.norm_rotate(x, w, 1e-3, table),), theirs, leaves, draw)


def around(draw, T, S, D, iterations):
    """A hyper-connection, or without ``iterations`` a head."""
    R, constants = S * (S + 2) if iterations else S, kernels.Constants(iterations, 1e-3, 2e-3)
    leaves = [draw(T, 1, S, D), draw(R, S * D, wide=True, scale=0.1), draw(R, wide=True)]
    leaves += [draw(3 if iterations else 1, wide=True), *([draw(T, 1, D)] if iterations else [])]

    def ours(x, fn, bias, scale, output=None):
        if not iterations:
            return (kernels.collapse(x, fn, bias, scale, constants),)
        read = kernels.read(x, fn, bias, scale, constants)
        return read.input, kernels.expand(output, read.streams, read.post, read.comb)

    def theirs(x, fn, bias, scale, output=None):
        found = hyper.mixes(x, fn, constants.norm_eps)
        if not iterations:
            return (hyper.collapse(x, (found * scale + bias).sigmoid() + constants.eps),)
        sizes = [S, S, S * S]
        parts = zip(found.split(sizes, -1), scale, bias.split(sizes), strict=True)
        pre, post, comb = (one * by + base for one, by, base in parts)
        comb = hyper.sinkhorn(comb.unflatten(-1, (S, S)), iterations, constants.eps)
        mixed = hyper.expand(output, x, 2 * post.sigmoid(), comb)
        return hyper.collapse(x, pre.sigmoid() + constants.eps), mixed

    return beside(ours, theirs, leaves, draw)


def scored(draw, lengths, H, D, ratio, topk):
    """The indexer's scores of the chosen; first how many rows are not the reference's choice."""
    found = windows(draw.bounds(lengths), sum(lengths), ratio)
    visible = Visible(found.begin, found.seen)
    E = len(found.opens)
    leaves = [draw(sum(lengths), H, D), draw(E, D), draw(sum(lengths), H)]
    with torch.no_grad():
        if E > 3:  # equal scores, and scores of 0
            leaves[1][2], leaves[1][3] = leaves[1][1], -leaves[1][1]
    given = indexers.Projected(*leaves)
    chosen = attention.select(given, visible, topk)
    rows = (chosen.sort().values != indexers.select(given, visible, topk).sort().values).any(1).sum()
    own = Visible(found.begin, found.seen, chosen)

    def theirs(q, k, w):
        keys = k.index_select(0, chosen.clamp(min=0).flatten()).unflatten(0, chosen.shape)
        return (indexers.scores(q, keys, w),)

    from model.layers.deepseek_v4.hybrid.kernels import indexer

    kept = [(chosen >= 0).float()]
    return [float(rows), *beside(lambda *x: (indexer.scores(*x, own),), theirs, leaves, draw, kept, _norm)]


def pooled(draw, lengths, D, ratio, overlap):
    """A compressor's windows."""
    found = windows(draw.bounds(lengths), sum(lengths), ratio)
    C = D * (2 if overlap else 1)
    leaves = [draw(sum(lengths), C), draw(sum(lengths), C), draw(ratio, C, wide=True)]
    whole = (found.tokens[:, -1] - found.tokens[:, 0] == ratio - 1)[:, None].float()
    return beside(
        lambda k, z, ape: (attention.pool(k, z, ape, found, overlap),),
        lambda k, z, ape: (compressor.pool(k[found.tokens], z[found.tokens] + ape, found.opens, overlap),),
        leaves,
        draw,
        [whole],
    )


def gated(draw, T, F, limit):
    """The experts' activation, numbers at its limits among others."""
    leaves = [draw(T, 2 * F, scale=2 * limit), draw(T, wide=True)]
    with torch.no_grad():
        leaves[0][0, 0], leaves[0][0, F] = limit, -limit
    return beside(
        lambda x, w: (swiglu.weighted_swiglu(x, w, limit),),
        lambda x, w: (experts.clamped_swiglu(x, limit) * w[:, None],),
        leaves,
        draw,
    )


CASES = {"attended": attended, "normed": normed, "around": around, "scored": scored, "pooled": pooled, "gated": gated}


def errors(kind, seed, device, dtype, *sizes):
    """Of one case; in the order of its results and leaves."""
    return CASES[kind](Drawn(seed, device, dtype), *sizes)


def lengths(seed, most):
    return Drawn(seed, "cpu", torch.float32).lengths(most)
