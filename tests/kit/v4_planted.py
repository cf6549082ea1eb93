"""Errors of DeepSeek-V4 that others made in public, as changes of lines of ours, and what sees them.

``copied`` writes the room with some lines changed as a package of its own; ``seen`` runs a whole model of it in fp64
against the formulas and names what differs.
"""

import functools
from dataclasses import replace

import torch
import v4_model as v4
import v4_network as net

from model.alignment.deepseek_v4 import formulas, objective

C = v4.Config()
LENGTHS = [9, 14, 3]
WEIGHTS = {"lm": 1.0, "mtp": 0.3, "index": 0.7}
LIMIT = 1e-9


def copied(folder, package, edits):
    """The room's files in ``folder`` as ``package``; ``edits``: (file, old line's part, new), each found once."""
    source = v4.room()["rotary"].__file__.rpartition("/")[0]
    texts = {path.stem: path.read_text() for path in sorted(type(folder)(source).glob("*.py"))}
    for name, old, new in edits:
        assert texts[name].count(old) == 1, (name, old)
        texts[name] = texts[name].replace(old, new)
    (folder / package).mkdir()
    for name, text in texts.items():
        (folder / package / f"{name}.py").write_text(text.replace(v4.ROOM, package))


def whole(package=v4.ROOM):
    return v4.fill(v4.Whole(C, package)).double()


@functools.cache
def expected():
    """What the formulas give for ``whole``: values, sets and gradients."""
    model, (tokens, cu) = whole(), v4.row(LENGTHS, C)
    w = net.to_network(net.held(model))
    docs, first = [], {"csa": 0, "hca": 0}
    sets = [[] for _ in C.kinds]
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        docs.append(formulas.document(tokens[start:end].tolist(), w, C, index=True))
        for found, chosen, kind in zip(sets, docs[-1]["chosen"], C.kinds, strict=False):
            found += [sorted(first[kind] + slot for slot in row) for row in chosen] if kind == "csa" else []
        first["csa"] += (end - start) // C.csa
    losses = objective.losses(docs, [part.tolist() for part in tokens.split(LENGTHS)], C)
    del losses["aux"]
    values = {name: torch.cat([doc[name] for doc in docs]).detach() for name in ("logits", "mtp")}
    routed = [[sorted(row) for rows in of for row in rows] for of in zip(*(d["routed"] for d in docs), strict=True)]
    return values, losses, [rows for rows in sets if rows], routed, gradients(model, losses)


def gradients(model, losses):
    named = dict(model.named_parameters())
    total = sum(weight * losses[name] for name, weight in WEIGHTS.items() if name in losses)
    return dict(zip(named, torch.autograd.grad(total, named.values(), allow_unused=True), strict=True))


def off(ours, theirs):
    """The difference as a part of the largest value; infinite where one is missing."""
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return float(ours is not theirs) * torch.inf
    gap = (ours - theirs).detach().abs().max() / theirs.detach().abs().max()
    return torch.inf if gap.isnan() else float(gap)


def rows_of(table):
    """Each row's numbers but -1, in order."""
    return [sorted(number for number in row if number >= 0) for row in table.tolist()]


def seen(package=v4.ROOM):
    """Of logits, mtp, chosen, routed, lm, index and gradients, what differs from the formulas; and "published", the
    frequencies that a layer has by default, "square", experts of [3, 3] tokens; or "refused", where it raised."""
    values, losses, sets, routed, grads = expected()
    tokens, cu = v4.row(LENGTHS, C)
    try:
        model = whole(package)
        said = model(tokens, cu, index_loss=True)
        found = v4.losses(said, tokens, cu, C)
        differing = {name for name in ("logits", "mtp") if not off(said[name], values[name]) < LIMIT}
        differing |= {name for name in losses if not off(found.get(name), losses[name]) < LIMIT}
        chosen = [rows_of(a.chosen) for a in said["attended"] if a.chosen is not None]
        differing |= set() if chosen == sets else {"chosen"}
        differing |= set() if [rows_of(rows) for rows in said["routed"]] == routed else {"routed"}
        got = gradients(model, found)
        differing |= set() if all(off(got[name], grads[name]) < LIMIT for name in grads) else {"gradients"}
        return differing | published(model) | square(model)
    except (ValueError, RuntimeError, IndexError):
        return {"refused"}


def published(model):
    fields = model.m["attention"].Shape.__dataclass_fields__
    c, like = replace(C, rope_width=64, original=65_536), torch.zeros((), dtype=torch.float64)
    for name, compressed in (("rope", False), ("compress_rope", True)):
        frequencies = fields[name].default.frequencies(like)
        if not off(frequencies, torch.tensor(formulas.frequencies(c, compressed), dtype=like.dtype)) < LIMIT:
            return {"published"}
    return set()


def square(model):
    moe, rng = model.layers[0].moe, torch.Generator().manual_seed(0)
    tokens, x = torch.arange(9).view(3, 3), torch.randn(3, 3, C.hidden, generator=rng, dtype=torch.float64)
    w = {net.in_mixture(name): tensor for name, tensor in net.held(moe).items()}
    for s, b in ((0, 2), (1, 0)):
        expected_, *_ = formulas.moe(x[s, b], int(tokens[s, b]), w, "", C, w["router.tid2eid"])
        if not off(moe(x, tokens)[s, b], expected_) < LIMIT:
            return {"square"}
    return set()
