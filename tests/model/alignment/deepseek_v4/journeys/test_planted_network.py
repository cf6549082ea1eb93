"""Errors that were made in public with DeepSeek-V4, planted one by one in the network that is trained: the table of
``model.align`` names the module of each."""

import pytest
import v4_hf
import v4_table

pytestmark = pytest.mark.upstream
NEAR = "output = self._of_near(near, keys) +"
SINK = "sink.to(q.dtype).expand(len(q), -1)[..., None],"
ROPE = "shape.compress_rope if shape.ratio else shape.rope"
BACK = "mixed = rotate(mixed, table, inverse=True)"
ROWS = "        c = c / (c.sum(-1, keepdim=True) + eps)\n"
COLUMNS = "        c = c / (c.sum(-2, keepdim=True) + eps)\n"
TOPK = "return (scores + self.expert_bias).topk(self.topk, dim=-1).indices"
WEIGHTS = "weights = normalised(scores, chosen,"
BUILT = "self.mlp.set_layer_number(layer_number)"
LAYERS = "hybrid.layers"
PUBLIC, EXACT = "transformers 5.24.0", "formulas, fp64"


def experts(how, *routed):
    return [
        (
            LAYERS,
            BUILT,
            f"{BUILT}\n        import v4_table\n\n        v4_table.clamped(self.mlp, {how!r}{''.join(routed)})",
        )
    ]


ERRORS = {  # {error: (edits, layer, module, kind, against) of the first row that does not hold}
    "comb untransposed": (
        [("hyper", "comb.transpose(-1, -2)", "comb")],
        ("1", "mHC of attention, streams behind it", "values", PUBLIC),
    ),
    "post without its two": (
        [("hyper", "2 * post.sigmoid()", "post.sigmoid()")],
        ("1", "mHC of attention", "values", PUBLIC),
    ),
    "post with epsilon": (
        [("hyper", "2 * post.sigmoid()", "2 * post.sigmoid() + self.eps")],
        ("1", "mHC of attention", "values", PUBLIC),
    ),
    "Sinkhorn begins with rows": (
        [("hyper", "    c = c / (c.sum(-2, keepdim=True) + eps)\n    for", "    for")],
        ("1", "mHC of attention", "values", PUBLIC),
    ),
    "Sinkhorn in the other order": (
        [("hyper", ROWS + COLUMNS, COLUMNS + ROWS)],
        ("1", "mHC of attention", "values", PUBLIC),
    ),
    "epsilon outside the root": (
        [
            (
                "hyper",
                "torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)",
                "1 / (z.square().mean(-1, keepdim=True).sqrt() + eps)",
            )
        ],
        ("1", "mHC of attention", "values", PUBLIC),
    ),
    "pairs of halves": (
        [
            ("rotary", "turned.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)", "turned.to(cos.dtype).chunk(2, -1)"),
            ("rotary", "pairs.flatten(-2)", "pairs.transpose(-1, -2).flatten(-2)"),
        ],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "base 10000 on compressed layers": ([("attention", ROPE, "shape.rope")], ("2", "CSA compressor", "values", PUBLIC)),
    "YaRN on sliding layers": (
        [("attention", ROPE, "shape.compress_rope")],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "mscale in the softmax": (
        [("core", "query.shape[-1] ** -0.5", "query.shape[-1] ** -0.5 * 1.277**2")],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "entries at 0, 1, 2": (
        [("compressor", "window * ratio, window == 0", "window, window == 0")],
        ("2", "CSA compressor", "values", PUBLIC),
    ),
    "no inverse rotation": (
        [("attention", BACK, "")],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "turned back at the key's position": (
        [
            ("attention", BACK, BACK.replace("= ", "= mixed if visible is None else ")),
            (
                "attention",
                "        mixed, mass",
                "        from model.layers.deepseek_v4 import core as planted\n\n"
                "        planted.UNTURNED = self.kv_layernorm(self.linear_kv_proj(x))\n"
                "        mixed, mass",
            ),
            ("core", "[..., 1:], keys).to", "[..., 1:], self._near(UNTURNED[self.first : self.first + len(kv)])).to"),
        ],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "no sink": (
        [("core", SINK, SINK.replace("sink.", "(sink * 0 - 1e30)."))],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "the sink among the numerators": (
        [("core", NEAR, f"{NEAR} (1 - near.sum(-1) - far.sum(-1))[..., None] * values.flatten(0, -2)[0] +")],
        ("2", "core attention, CSA", "values", PUBLIC),  # the path without entries has another line
    ),
    "a window of one more": (
        [("core", "    for rows in blocks(query):", "    window += 1\n    for rows in blocks(query):")],
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
    "entries seen a token late": (
        [("compressor", "(place + 1) // ratio", "place // ratio")],
        ("2", "indexer's top-k", "choices", PUBLIC),
    ),
    "halves the other way round": (
        [("compressor", "(before, own), (weight, weight_own)", "(own, before), (weight_own, weight)")],
        ("2", "CSA compressor", "values", PUBLIC),
    ),
    "gates' positions after the overlap": (
        [
            (
                "compressor",
                "def pool(keys: Tensor, gates: Tensor,",
                "def pool(keys: Tensor, gates: Tensor, ape: Tensor,",
            ),
            ("compressor", "keys * gates.softmax(1)", "keys * (gates + ape.reshape(gates.shape[1:])).softmax(1)"),
            ("compressor", "pool(keys, gates + self.ape.to(gates.dtype),", "pool(keys, gates, self.ape,"),
        ],
        ("2", "CSA compressor", "values", PUBLIC),
    ),
    "windows across documents": (
        [
            (
                "compressor",
                "    place = documents.pos",
                "    cu_seqlens = cu_seqlens[[0, -1]]\n    place = documents.pos",
            )
        ],
        ("2", "CSA compressor", "values", PUBLIC),
    ),
    "bias in the weights": (
        [("hybrid.router", WEIGHTS, f"{WEIGHTS.replace('scores,', 'scores + self.expert_bias,')}")],
        ("2", "learned router's weights", "values", PUBLIC),
    ),
    "no bias in the choice": (
        [("hybrid.router", TOPK, "return scores.topk(self.topk, dim=-1).indices")],
        ("2", "learned router's experts", "choices", PUBLIC),
    ),
    "no scaling factor": (
        [("router", "+ 1e-20) * scaling", "+ 1e-20)")],
        ("1", "hash router's weights", "values", PUBLIC),
    ),
    "a router in bf16": (
        [("hybrid.router", "affinity(logits.flatten(0, 1))", "affinity(logits.flatten(0, 1).bfloat16())")],
        ("1", "hash router's weights", "values", PUBLIC),
    ),
    "ids the other way round": (
        [
            (
                "hybrid.router",
                "self.tid2eid[self.tokens.flatten()]",
                "self.tid2eid[self.tokens.view(2, -1).t().flatten()]",
            )
        ],
        ("1", "hash router's experts", "choices", PUBLIC),
    ),
    "a clamp after the product": (experts("after the product"), ("1", "shared expert", "values", PUBLIC)),
    "the gate clamped from below": (experts("the gate from below"), ("1", "shared expert", "values", PUBLIC)),
    "the shared expert unclamped": (experts("never", ", False"), ("1", "shared expert", "values", PUBLIC)),
    "MTP after the collapse": (
        [("mtp", "self.hnorm(streams)", "self.hnorm(streams.mean(-2, keepdim=True).expand_as(streams))")],
        ("MTP", "streams that enter", "values", EXACT),
    ),
    "no relu": (
        [("indexer", "fp32.wide(keys)).relu()", "fp32.wide(keys))")],
        ("2", "indexer's scores", "values", PUBLIC),
    ),
    "scores without the heads' root": (
        [("indexer", "heads**-0.5 * width**-0.5", "width**-0.5")],
        ("2", "indexer's scores", "values", PUBLIC),
    ),
    "no indexer's loss": (
        [("attention", "if projected is None or not index_loss", "if True")],
        ("2", "indexer's loss, of each token", "values", EXACT),
    ),
    "a teacher by entries alone": (
        [("core", "far.detach().sum(1)", "far.detach().div(far.sum(-1, keepdim=True).detach() + 1e-30).sum(1)")],
        ("2", "indexer's loss, of each token", "values", EXACT),
    ),
    "the indexer's gradient flows on": (
        [("indexer", "hidden, latent = hidden.detach(), latent.detach()", "")],
        ("2", "indexer's loss, gradients of all others", "values", EXACT),
    ),
    "a teacher that learns": (
        [("indexer", "mass.detach()", "mass"), ("core", "far.detach().sum(1)", "far.sum(1)")],
        ("2", "indexer's loss, gradients of all others", "values", EXACT),
    ),
}
SIZES = {  # {error: (fields of the size, variant, first row)}: the reference has its own constants
    "base 40000": ({("attention", "compress_rope_theta"): 40_000.0}, ("2", "CSA compressor", "values", PUBLIC)),
    "YaRN by a factor of 4": ({("attention", "yarn", "factor"): 4.0}, ("2", "CSA compressor", "values", PUBLIC)),
    "base 160000 on sliding layers": (
        {("attention", "rope_theta"): 160_000.0},
        ("1", "core attention, sliding window", "values", PUBLIC),
    ),
}


@pytest.fixture(autouse=True, scope="module")
def public():
    v4_hf.needed()


@pytest.mark.parametrize(("variant", "seed"), [(0, 6), (1, 5)], ids=["published", "felt"])
def test_without_an_error_all_rows_hold(deepseek, variant, seed):
    first, verdict, draws = deepseek.call(v4_table.table, (), None, variant, seed)
    assert first is None and verdict.startswith("all ") and draws == 1


@pytest.mark.parametrize("error", ERRORS)
def test_the_table_names_the_module(deepseek, error):
    edits, expected = ERRORS[error]
    first, verdict, _ = deepseek.call(v4_table.table, edits)
    assert first == expected and expected[1] in verdict


@pytest.mark.parametrize("error", SIZES)
def test_the_table_names_the_module_of_a_wrong_constant(deepseek, error):
    changed, expected = SIZES[error]
    first, _, _ = deepseek.call(v4_table.table, (), changed)
    assert first == expected


def test_after_the_errors_nothing_differs(deepseek):
    assert deepseek.call(v4_table.table)[0] is None
