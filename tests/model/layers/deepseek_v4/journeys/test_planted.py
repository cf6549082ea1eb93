"""Errors that were made in public with DeepSeek-V4, planted one by one: each is seen."""

import pytest
import v4_planted

NEAR = "output = self._of_near(near, keys) +"
SINK = "sink.to(q.dtype).expand(len(q), -1)[..., None],"
ROPE = "shape.compress_rope if shape.ratio else shape.rope"
QUERY = "rms_norm(self.linear_q_up_proj(latent).unflatten(-1, (shape.heads, -1)), eps=shape.eps)"
BACK = "mixed = rotate(mixed, table, inverse=True)"
TEACHER = "teacher / teacher.sum(-1, keepdim=True).clamp(min=torch.finfo(teacher.dtype).tiny)"
ROOT = "products.clamp(min=torch.finfo(products.dtype).tiny).sqrt()"
ROWS = "        c = c / (c.sum(-1, keepdim=True) + eps)\n"
COLUMNS = "        c = c / (c.sum(-2, keepdim=True) + eps)\n"
SWIGLU = "F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)"
ERRORS = {
    # hyper-connections
    "comb untransposed": [("hyper", "comb.transpose(-1, -2)", "comb")],
    "post without its two": [("hyper", "2 * post.sigmoid()", "post.sigmoid()")],
    "post with epsilon": [("hyper", "2 * post.sigmoid()", "2 * post.sigmoid() + self.eps")],
    "pre without epsilon": [("hyper", "Coefficients(pre.sigmoid() + self.eps", "Coefficients(pre.sigmoid()")],
    "Sinkhorn begins with rows": [("hyper", "    c = c / (c.sum(-2, keepdim=True) + eps)\n    for", "    for")],
    "Sinkhorn in the other order": [("hyper", ROWS + COLUMNS, COLUMNS + ROWS)],
    "epsilon outside the root": [
        (
            "hyper",
            "torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)",
            "1 / (z.square().mean(-1, keepdim=True).sqrt() + eps)",
        )
    ],
    # rotations
    "pairs of halves": [
        ("rotary", "turned.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)", "turned.to(cos.dtype).chunk(2, dim=-1)"),
        ("rotary", "pairs.flatten(-2)", "pairs.transpose(-1, -2).flatten(-2)"),
    ],
    "base 40000": [("rotary", "Rope(64, 160_000.0, Yarn())", "Rope(64, 40_000.0, Yarn())")],
    "base 10000 on compressed layers": [("attention", ROPE, "shape.rope")],
    "YaRN on sliding layers": [("attention", ROPE, "shape.compress_rope")],
    "YaRN by a factor of 4": [("rotary", "factor: float = 16.0", "factor: float = 4.0")],
    "mscale in the softmax": [("core", "query.shape[-1] ** -0.5", "query.shape[-1] ** -0.5 * 1.277**2")],
    "entries at 0, 1, 2": [("compressor", "window * ratio, window == 0", "window, window == 0")],
    "no inverse rotation": [("attention", BACK, "")],
    "rotated on instead of back": [("attention", "rotate(mixed, table, inverse=True)", "rotate(mixed, table)")],
    "turned back at the key's position": [
        (
            "attention",
            "        mixed, mass",
            "        from planted import core\n\n"
            "        core.UNTURNED = self.kv_layernorm(self.linear_kv_proj(x))\n"
            "        mixed, mass",
        ),
        ("attention", BACK, BACK.replace("= ", "= mixed if visible is None else ")),
        ("core", "[..., 1:], keys).to", "[..., 1:], self._near(UNTURNED[self.first : self.first + len(kv)])).to"),
    ],
    # attention
    "query's norm over all heads": [
        ("attention", QUERY, "rms_norm(self.linear_q_up_proj(latent), eps=shape.eps).unflatten(-1, (shape.heads, -1))")
    ],
    "no sink": [("core", SINK, SINK.replace("sink.", "(sink * 0 - 1e30)."))],
    "the sink among the numerators": [
        ("core", NEAR, f"{NEAR} (1 - near.sum(-1) - far.sum(-1))[..., None] * values.flatten(0, -2)[0] +")
    ],
    "a window of one more": [
        ("core", "    for rows in blocks(query):", "    window += 1\n    for rows in blocks(query):"),
    ],
    "a window across documents": [("core", " & (back <= self.positions[:, None])", "")],
    "groups of heads by turns": [
        ("attention", "x.reshape(len(x),", "x.unflatten(1, (-1, groups)).transpose(1, 2).reshape(len(x),")
    ],
    # compressors
    "entries seen a token late": [("compressor", "(place + 1) // ratio", "place // ratio")],
    "halves the other way round": [
        ("compressor", "(before, own), (weight, weight_own)", "(own, before), (weight_own, weight)")
    ],
    "gates' positions after the overlap": [
        ("compressor", "def pool(keys: Tensor, gates: Tensor,", "def pool(keys: Tensor, gates: Tensor, ape: Tensor,"),
        ("compressor", "keys * gates.softmax(1)", "keys * (gates + ape.reshape(gates.shape[1:])).softmax(1)"),
        ("compressor", "pool(keys, gates + self.ape.to(gates.dtype),", "pool(keys, gates, self.ape,"),
    ],
    "the first window without its mask": [
        ("compressor", "masked_fill(opens[:, None, None], -torch.inf)", "masked_fill(opens[:, None, None], 0)")
    ],
    "windows across documents": [
        ("compressor", "    place = documents.pos", "    cu_seqlens = cu_seqlens[[0, -1]]\n    place = documents.pos")
    ],
    "the overlap across documents": [("compressor", "window * ratio, window == 0", "window * ratio, slot == 0")],
    # experts
    "bias in the weights": [("router", "normalised(scores, chosen", "normalised(scores + self.expert_bias, chosen")],
    "no bias in the choice": [("router", "scores + self.expert_bias", "scores")],
    "no scaling factor": [("router", "+ 1e-20) * scaling", "+ 1e-20)")],
    "weights not normalised": [("router", "taken / (taken.sum(-1, keepdim=True) + 1e-20)", "taken")],
    "sigmoid scores": [("router", ROOT, "fp32.wide(logits).sigmoid()")],
    "a router in bf16": [
        ("router", "fp32.wide(x) @ fp32.wide(weight).T", "(x.bfloat16() @ weight.bfloat16().T).to(x.dtype)")
    ],
    "a clamp after the product": [("experts", SWIGLU, "(F.silu(gate) * up).clamp(-limit, limit)")],
    "the gate's clamp after SiLU": [("experts", "F.silu(gate.clamp(max=limit))", "F.silu(gate).clamp(max=limit)")],
    "the gate clamped from below": [("experts", "gate.clamp(max=limit)", "gate.clamp(-limit, limit)")],
    "up clamped from above alone": [("experts", "up.clamp(-limit, limit)", "up.clamp(max=limit)")],
    "the shared expert unclamped": [
        ("experts", "clamped_swiglu(self.linear_fc1(x), self.limit)", "clamped_swiglu(self.linear_fc1(x), 1e9)")
    ],
    "ids the other way round": [
        ("experts", "self.router(x, tokens)", "self.router(x, tokens.T.reshape(tokens.shape))")
    ],
    # multi-token prediction
    "MTP after the collapse": [
        ("mtp", "self.hnorm(streams)", "self.hnorm(streams.mean(-2, keepdim=True).expand_as(streams))")
    ],
    "MTP with its projections exchanged": [
        (
            "mtp",
            "self.e_proj(self.enorm(embedded)).unsqueeze(-2) + self.h_proj",
            "self.h_proj(self.enorm(embedded)).unsqueeze(-2) + self.e_proj",
        )
    ],
    # the indexer
    "no relu": [("indexer", "fp32.wide(keys)).relu()", "fp32.wide(keys))")],
    "scores without the heads' root": [("indexer", "heads**-0.5 * width**-0.5", "width**-0.5")],
    "no indexer's loss": [("attention", "if projected is None or not index_loss", "if True")],
    "the indexer's gradient flows on": [("indexer", "hidden, latent = hidden.detach(), latent.detach()", "")],
    "a teacher by entries alone": [
        ("core", "far.detach().sum(1)", "far.detach().div(far.sum(-1, keepdim=True).detach() + 1e-300).sum(1)")
    ],
    "a teacher that learns": [("indexer", "mass.detach()", "mass"), ("core", "far.detach().sum(1)", "far.sum(1)")],
    "a teacher with more than its entries": [("indexer", TEACHER, "teacher / 4")],
    "index queries before the norm": [
        ("attention", "core.visible(x, latent,", "core.visible(x, self.linear_q_down_proj(x),")
    ],
}
# What alone sees an error: no output does
SUBTLE = {
    "scores without the heads' root": {"index", "gradients"},
    "no indexer's loss": {"index", "gradients"},
    "the indexer's gradient flows on": {"gradients"},
    "a teacher by entries alone": {"index", "gradients"},
    "a teacher that learns": {"gradients"},
    "a teacher with more than its entries": {"index", "gradients"},
    "base 40000": {"published"},
    "YaRN by a factor of 4": {"published"},
    "ids the other way round": {"square"},
    "MTP after the collapse": {"mtp", "gradients"},
}


def test_without_an_error_nothing_differs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    v4_planted.copied(tmp_path, "unplanted", [])
    assert v4_planted.seen() == v4_planted.seen("unplanted") == set()


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_seen(tmp_path, monkeypatch, error):
    package = "planted_" + "".join(ch if ch.isalnum() else "_" for ch in error)
    monkeypatch.syspath_prepend(tmp_path)
    edits = [(name, old, new.replace("from planted", f"from {package}")) for name, old, new in ERRORS[error]]
    v4_planted.copied(tmp_path, package, edits)
    found = v4_planted.seen(package)
    assert found and "refused" not in found
    if error in SUBTLE:
        assert found - {"routed"} == SUBTLE[error]
