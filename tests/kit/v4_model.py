"""A whole DeepSeek-V4 of the room's modules, as tests put it together, small and with every number drawn."""

import importlib
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from model.alignment.deepseek_v4 import dims
from model.layers.common.norm import WideRMSNorm

ROOM = "model.layers.deepseek_v4"


def Config(**changed):
    """The formulas' of a small model, each of whose constants is felt."""
    widths = {"vocab": 97, "hidden": 24, "heads": 4, "head_dim": 16, "q_lora_rank": 12, "rope_width": 4}
    attention = {"o_groups": 2, "o_lora_rank": 5, "window": 6, "csa": 4, "hca": 8, "original": 64}
    indexer = {"index_heads": 8, "index_width": 8, "index_topk": 3}
    experts = {"ffn": 10, "experts": 6, "topk": 2, "hashed": 1, "scaling": 1.5, "limit": 0.3}
    mixed = {"streams": 3, "iterations": 20, "hc_eps": 3e-3, "eps": 2e-3, "kinds": ("sliding", "csa", "hca", "csa")}
    return dims.Config(**widths | attention | indexer | experts | mixed | changed)


def room(package=ROOM):
    """The room's modules, of the tree or of a changed copy (``v4_planted``)."""
    names = ("rotary", "hyper", "compressor", "core", "indexer", "attention", "router", "experts", "mtp")
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def rope(c, compressed, m):
    yarn = m["rotary"].Yarn(16.0, c.original, 32.0, 1.0)
    return m["rotary"].Rope(c.rope_width, 160_000.0 if compressed else 10_000.0, yarn if compressed else None)


def shape(c, kind, m):
    index = m["attention"].Index(c.index_heads, c.index_width, c.index_topk) if kind == "csa" else None
    sizes = c.hidden, c.heads, c.head_dim, c.q_lora_rank, c.o_groups, c.o_lora_rank, c.window
    ratio = {"sliding": 0, "csa": c.csa, "hca": c.hca}[kind]
    return m["attention"].Shape(*sizes, ratio, index, rope(c, False, m), rope(c, True, m), c.eps)


class Layer(nn.Module):
    def __init__(self, c, kind, number, m):
        super().__init__()
        self.m = m
        sizes = c.hidden, c.streams, c.iterations, c.hc_eps, c.eps
        self.attn_hc, self.ffn_hc = (m["hyper"].HyperConnection(*sizes) for _ in range(2))
        self.attn_norm, self.ffn_norm = (WideRMSNorm(c.hidden, c.eps) for _ in range(2))
        self.attention = m["attention"].Attention(shape(c, kind, m))
        routing = c.hidden, c.experts, c.topk, c.scaling
        hashed = 0 <= number < c.hashed
        r, e = m["router"], m["experts"]
        self.moe = e.MixtureOfExperts(
            r.HashRouter(*routing, c.vocab, number) if hashed else r.Router(*routing),
            e.Experts(c.hidden, c.ffn, c.experts, c.limit),
            e.SharedExpert(c.hidden, c.ffn, c.limit),
        )

    def forward(self, streams, tokens, cu, **asked):
        """Streams [T, 1, n, d] -> the same, and what the attention made."""
        expand = self.m["hyper"].expand
        x, found = self.attn_hc(streams)
        attended = self.attention(self.attn_norm(x), cu, **asked)
        streams = expand(attended.output, streams, found.post, found.comb)
        x, found = self.ffn_hc(streams)
        return expand(self.moe(self.ffn_norm(x), tokens), streams, found.post, found.comb), attended


class Whole(nn.Module):
    """``mtp``: a further layer, sliding and with a learned router, that predicts the token after the next one."""

    def __init__(self, c, package=ROOM, mtp=True):
        super().__init__()
        self.c, self.m = c, room(package)
        self.embedding = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c, kind, i, self.m) for i, kind in enumerate(c.kinds))
        self.head = self.m["hyper"].HyperHead(c.hidden, c.streams, c.hc_eps, c.eps)
        self.norm = WideRMSNorm(c.hidden, c.eps)
        self.output = nn.Linear(c.hidden, c.vocab, bias=False)
        if mtp:
            self.mtp = self.m["mtp"].MtpLayer(c.hidden, c.streams, c.eps, c.hc_eps)
            self.mtp_layer = Layer(c, "sliding", -1, self.m)

    def forward(self, tokens, cu, **asked):
        """tokens [T]; a dict of logits [T, V], each layer's ``Attended``, and the routers' experts [T, k]."""
        routed, hooks = [], []
        for module in self.modules():
            if isinstance(module, self.m["router"].Router | self.m["router"].HashRouter):
                hooks.append(module.register_forward_hook(lambda _, __, out: routed.append(out[0].flatten(0, -2))))
        embedded = self.embedding(tokens)[:, None]  # [T, 1, d]
        streams, attended = self.m["hyper"].spread(embedded, self.c.streams), []
        for layer in self.layers:
            streams, found = layer(streams, tokens[:, None], cu, **asked)
            attended.append(found)
        said = {"attended": attended, "routed": routed, "logits": self.output(self.norm(self.head(streams)))[:, 0]}
        if hasattr(self, "mtp"):
            last = cu[1:].long() - 1
            after = embedded.roll(-1, 0).index_fill(0, last[last >= 0], 0)
            hidden, _ = self.mtp(after, streams, lambda x: self.mtp_layer(x, tokens[:, None], cu)[0])
            said["mtp"] = self.output(hidden)[:, 0]
        for hook in hooks:
            hook.remove()
        return said


def targets(tokens, cu, ahead):
    """[T], -100 where the document has no token that far ahead."""
    found = torch.full_like(tokens, -100)
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        if end - start > ahead:
            found[start : end - ahead] = tokens[start + ahead : end]
    return found


def losses(said, tokens, cu, c):
    """The language model's loss, MTP's, and the sum of the indexers' means over the tokens that see an entry."""
    sees = max(sum(max(n - c.csa + 1, 0) for n in cu.diff().tolist()), 1)  # tokens that an indexer chooses for
    index = [a.index_loss.sum() / sees for a in said["attended"] if a.index_loss is not None]
    return {
        "lm": F.cross_entropy(said["logits"], targets(tokens, cu, 1)),
        **({"mtp": F.cross_entropy(said["mtp"], targets(tokens, cu, 2))} if "mtp" in said else {}),
        **({"index": torch.stack(index).sum()} if index else {}),
    }


def fill(module, seed=0, spread=0.4):
    """Every parameter and buffer drawn: norms and scales around 1, the rest around 0; tables of different experts."""
    rng = torch.Generator().manual_seed(seed)
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()]):
        with torch.no_grad():
            if name.endswith("tid2eid"):
                experts = max(int(tensor.max()) + 1, tensor.shape[1])
                tensor.copy_(torch.rand(len(tensor), experts, generator=rng).argsort(1)[:, : tensor.shape[1]])
            elif "norm" in name or name.endswith("scale"):
                tensor.copy_(0.6 + 0.8 * torch.rand(tensor.shape, generator=rng))
            else:
                tensor.copy_(spread * torch.randn(tensor.shape, generator=rng))
    return module


def row(lengths, c=None, seed=0):
    """Tokens [T] int64 and bounds [D+1] int32 of documents so long."""
    rng = torch.Generator().manual_seed(seed)
    vocab = (c or Config()).vocab
    return torch.randint(0, vocab, (sum(lengths),), generator=rng), torch.tensor([0, *lengths]).cumsum(0).int()


def kept(make):
    """The sizes of the tensors that autograd keeps for backward of what ``make`` makes."""
    sizes = [0]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        made = make()
    assert made is not None
    return sizes


def drawn(seed):
    """A config of other widths, ratios, window and counts."""
    rng = torch.Generator().manual_seed(seed)

    def pick(*of):
        return of[int(torch.randint(0, len(of), (), generator=rng))]

    groups = pick(1, 2, 3)
    return replace(
        Config(),
        hidden=pick(12, 20, 28),
        heads=groups * pick(1, 2),
        head_dim=pick(8, 12, 20),
        q_lora_rank=pick(7, 12),
        o_groups=groups,
        o_lora_rank=pick(3, 6),
        window=pick(1, 2, 5, 9),
        csa=pick(2, 4),
        hca=pick(5, 8),
        index_topk=pick(1, 3, 6),
        rope_width=pick(2, 4, 8),
        experts=pick(4, 7),
        topk=pick(2, 3),  # with one its weight is the scaling, and the router learns nothing
        streams=pick(2, 3, 4),
        iterations=pick(1, 3, 20),
        limit=pick(0.1, 1.0, 10.0),
    )
