"""Errors planted one by one in NAM56R's network, in upstream's code and ours: the table of ``model.align`` names each
one's module."""

import nam56r_table
import pytest

pytestmark = pytest.mark.upstream
NGRAM, STRUCTURE = "model.exported.ngram", "model.exported.structure_embedding:StructureEmbedding"
SCAN, SSM = "model.layers.mamba3.reference", "mamba_ssm.modules.mamba3:Mamba3.forward"
M2RNN = "model.layers.m2rnn.mixer"
MLA = "model.layers.attention.attention"
ROPE = "megatron.core.models.common.embeddings.rope_utils:_apply_rotary_pos_emb_bshd"
CORE = "megatron.core.transformer"
DSA, INDEX = (f"{CORE}.experimental_attention_variant.{name}" for name in ("dsa", "dsa_indexer_loss"))
MOE = f"{CORE}.moe"
ROUTING, ROUTER = f"{MOE}.router:topk_routing_with_score_function", f"{MOE}.router:TopKRouter"
MTP = f"{CORE}.multi_token_prediction"
CONFIG = "model.step.megatron"
BIASED = "scores_for_routing = scores + expert_bias.float()"
SCANNED = ("3", "Mamba-3, scan and gate", "values")
RECURRED = ("12", "M²RNN, recurrence and gate", "values")
ATTENDED, SPARSE = ("1", "core attention", "values"), ("5", "core attention", "values")

ERRORS = {  # {error: (edits, layer, module, kind of the first row that does not hold)}, of each kind of module two
    "another hash": (
        [(f"{NGRAM}:splitmix64", "(index + 2)", "(index + 3)")],
        ("entrance", "rows of the n-gram tables", "choices"),
    ),
    "n-grams across documents": (
        [
            (
                f"{NGRAM}:NgramHashEmbedding.rows",
                "torch.where(positions >= back, tokens.roll(back), self.pad)",
                "tokens.roll(back)",
            )
        ],
        ("entrance", "rows of the n-gram tables", "choices"),
    ),
    "one side column less": (
        [(f"{STRUCTURE}.forward", "in self.embeddings.items()", "in [*self.embeddings.items()][1:]")],
        ("entrance", "structure embedding", "values"),
    ),
    "no structure": (
        [
            (
                "model.step.network:Nam56r._entrance",
                "added + self.structure(fields)",
                "added + 0 * self.structure(fields)",
            )
        ],
        ("entrance", "sum", "values"),
    ),
    "a norm's epsilon": (
        [("model.layers.common.norm:RMSNorm.__init__", "eps=eps", "eps=1e-6")],
        ("1", "norm before MLA", "values"),
    ),
    "no residual": (
        [("model.layers.common.mixer:MixerLayer.forward", "around + self.mixer", "self.mixer")],
        ("3", "residual", "values"),
    ),
    "no trapezoid": ([(f"{SCAN}:_weights", "return own, own + F.pad(rest, (0, 1))", "return own, own")], SCANNED),
    "turned the other way": (
        [(f"{SCAN}:_rotated", "cos * a - sin * c, b, sin * a + cos * c", "cos * a + sin * c, b, cos * c - sin * a")],
        SCANNED,
    ),
    "no bias of B": (
        [("model.layers.mamba3.upstream:mamba3_mimo_reference", "K_bias.to(work)", "0 * K_bias.to(work)")],
        SCANNED,
    ),
    "states across documents": (
        [
            (
                "model.layers.mamba3.mixer:Mamba3Mixer.forward",
                "cu_seqlens=None if whole else cu_seqlens",
                "cu_seqlens=None",
            )
        ],
        SCANNED,
    ),
    "no gate": ([(f"{M2RNN}:M2RNN._gated", " * F.silu(gate)", "")], RECURRED),
    "W transposed": ([(f"{M2RNN}:m2rnn_reference", "W.to(dtype)", "W.to(dtype).mT")], RECURRED),
    "scale of the plain channels alone": (
        [
            (
                f"{MLA}:PackedAttention.__init__",
                "softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)",
                "config.qk_head_dim**-0.5",
            )
        ],
        ATTENDED,
    ),
    "documents see one another": (
        [
            (
                f"{MLA}:masked_attention",
                "(document[:, None] == document[None, :])",
                "(document[:, None] >= document[None, :])",
            )
        ],
        ATTENDED,
    ),
    "no relu": ([(f"{INDEX}:index_scores_block", "if use_relu:", "if False:")], ("5", "indexer's top-k", "choices")),
    "one key less": (
        [
            (
                f"{INDEX}:select_topk",
                'topk_scores == float("-inf")',
                '(topk_scores == float("-inf")) | (torch.arange(topk) == topk - 1)',
            )
        ],
        ("5", "indexer's top-k", "choices"),
    ),
    "all keys": (
        [(f"{DSA}:_unfused_absorbed_dsa_fn", 'torch.full((b, sq, skv), float("-inf")', "torch.full((b, sq, skv), 0.0")],
        SPARSE,
    ),
    "weights not normalised": (
        [
            (
                ROUTING,
                "probs = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20) if topk > 1 else scores",
                "probs = scores",
            )
        ],
        ("2", "router's weights", "values"),
    ),
    "bias in the weights": (
        [(ROUTING, BIASED, BIASED.replace("= ", "= scores = "))],
        ("2", "router's weights", "values"),
    ),
    "documents balanced together": (
        [(f"{ROUTER}._apply_seq_aux_loss", "if cu_seqlens is not None:", "if False:")],
        ("losses", "routers' loss", "values"),
    ),
    "MTP without a norm": (
        [
            (
                f"{MTP}:MultiTokenPredictionLayer._concat_embeddings",
                "apply_module(self.hnorm)(hidden_states)",
                "hidden_states",
            )
        ],
        ("MTP-1", "projection of hidden states and embeddings", "values"),
    ),
    "MTP asked for the next token": (
        [
            (
                "megatron.core.models.hybrid.hybrid_model:process_mtp_loss",
                "mtp_labels, _ = roll_tensor(",
                "_, _ = roll_tensor(",
            )
        ],
        ("losses", "MTP's loss", "values"),
    ),
    "MTP's MLP twice": (
        [
            (
                "model.layers.spec:_mlp",
                "linear_fc2=row",
                'linear_fc2=type("", (row,), {"forward": lambda self, x: (2 * row.forward(self, x)[0], None)})',
            )
        ],
        ("MTP-1", "MLP", "values"),
    ),
    "MTP's MLP without a residual": (
        [("model.layers.spec:_mlp", "mlp_bda=get_bias_dropout_add", "mlp_bda=lambda *_: lambda x, *_: x[0]")],
        ("MTP-1", "MLP, residual behind it", "values"),
    ),
    "a head of another scale": (
        [("model.layers.ends.head:Head.logits", "linear(hidden, self.weight)", "linear(hidden, 2 * self.weight)")],
        ("head", "logits", "values"),
    ),
    "keys without a gradient": (
        [(f"{MLA}:masked_attention", "(query, key, value))  #", "(query, key.detach(), value))  #")],
        ("MTP-1", "attention", "gradients"),
    ),
    "queries of Mamba-3 without a gradient": (
        [(f"{SCAN}:_scan", "scores = (q @ k.mT)", "scores = (q.detach() @ k.mT)")],
        ("11", "Mamba-3", "gradients"),
    ),
    "an indexer's gradient flows on": (
        [(f"{DSA}:DSAttention.forward", "x = x.detach()", "")],
        ("losses", "indexers' loss, gradients of all others", "values"),
    ),
}
MORE = {
    "angles without tanh": ([(f"{SCAN}:_angles", "angles.tanh()", "angles")], SCANNED),
    "rates by exp": ([(SSM, "-F.softplus(dd_A", "-torch.exp(dd_A")], SCANNED),
    "rates without their floor": ([(SSM, "torch.clamp(_A, max=-self.A_floor)", "_A")], SCANNED),
    "steps without their bias": ([(SSM, "F.softplus(dd_dt + self.dt_bias)", "F.softplus(dd_dt)")], SCANNED),
    "no skip": ([(f"{SCAN}:_gated", "if D is not None", "if False")], SCANNED),
    "a norm of B with another epsilon": (
        [("model.layers.mamba3.upstream:torch_norm", "eps=norm.eps", "eps=1e-6")],
        ("3", "norms of B and C", "values"),
    ),
    "all of the new state": ([(f"{M2RNN}:m2rnn_reference", "-log_f_.expm1()", "torch.ones_like(log_f_)")], RECURRED),
    "a state across documents": (
        [(f"{M2RNN}:M2RNN._recurrence", "self.W, cu_seqlens)", "self.W, cu_seqlens[[0, -1]])")],
        RECURRED,
    ),
    "forgetting without its bias": ([(f"{M2RNN}:log_forget", " + dt_bias.to(x.dtype)", "")], RECURRED),
    "a convolution across documents": (
        [(f"{M2RNN}:causal_conv", " * (place >= back).unsqueeze(-1)", "")],
        RECURRED,
    ),
    "a norm of M²RNN with another epsilon": (
        [(f"{M2RNN}:M2RNN.__init__", "nn.RMSNorm(inner, eps=1e-5)", "nn.RMSNorm(inner, eps=1e-3)")],
        ("12", "M²RNN's output", "values"),
    ),
    "halves turned": ([(ROPE, "if mla_rotary_interleaved:", "if False:")], ATTENDED),
    "weights of heads unscaled": (
        [(f"{DSA}:DSAIndexer.forward_before_topk", " * self.softmax_scale", "")],
        ("5", "indexer's queries, keys, weights", "values"),
    ),
    "another query's keys": (
        [
            (
                f"{DSA}:DSAttention.forward",
                "topk_indices = topk_holder[self.source_layer]",
                "topk_indices = topk_holder[self.source_layer].roll(1, 1)",
            )
        ],
        ("9", "core attention", "values"),
    ),
    "a loss over the chosen keys": (
        [
            (
                f"{CONFIG}:_attention",
                '"dsa_indexer_rotate_activation": False',
                '"dsa_indexer_rotate_activation": False, "dsa_indexer_use_sparse_loss": True',
            )
        ],
        ("losses", "indexers' loss", "values"),
    ),
    "no bias in the choice": ([(ROUTING, BIASED, "scores_for_routing = scores")], ("2", "router's experts", "choices")),
    "gelu by tanh": (
        [
            (
                f"{CONFIG}:megatron_config",
                "torch.nn.functional.gelu",
                "lambda x: torch.nn.functional.gelu(x, approximate='tanh')",
            )
        ],
        ("2", "shared expert", "values"),
    ),
    "MTP of the token itself": (
        [(f"{MTP}:MultiTokenPredictionLayer._get_embeddings", "input_ids, _ = roll_tensor(", "_, _ = roll_tensor(")],
        ("MTP-1", "projection of hidden states and embeddings", "values"),
    ),
    "no weight of MTP's loss": (
        [
            (
                "megatron.core.models.hybrid.hybrid_model:process_mtp_loss",
                "config.mtp_loss_scaling_factor / config.mtp_num_layers",
                "1.0",
            )
        ],
        ("MTP-1", "last norm", "gradients"),
    ),
    "smoothed labels": (
        [("model.layers.ends.head:_chunk_loss", 'reduction="none"', 'reduction="none", label_smoothing=0.1')],
        ("losses", "loss", "values"),
    ),
}


OF_SISO = {
    "pairs as MIMO has them": (
        [(f"{SCAN}:_halves", "x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)", "x")],
        SCANNED,
    ),
    "no skip": MORE["no skip"],
}


@pytest.mark.parametrize("size", ["nam56r_tiny", "nam56r_siso"])
@pytest.mark.parametrize("variant", [0, 1], ids=["published", "felt"])
def test_without_an_error_all_rows_hold_in_both_layouts_of_documents(deepseek, size, variant):
    first, verdict, missing, _ = deepseek.call(nam56r_table.table, (), size, (), variant)
    assert first is None and verdict.startswith("all ") and missing == []


def test_behind_a_tie_the_formulas_follow_the_network(deepseek):
    first, _, missing, ties = deepseek.call(nam56r_table.table, seed=3)
    assert ties == ["indexer's top-k"] and first is None and missing == []


@pytest.mark.parametrize("error", ERRORS)
def test_the_table_names_the_module(deepseek, error):
    edits, expected = ERRORS[error]
    first, verdict, *_ = deepseek.call(nam56r_table.table, edits)
    assert first == expected and expected[1] in verdict


@pytest.mark.long
@pytest.mark.parametrize("error", MORE)
def test_the_table_names_the_module_of_more(deepseek, error):
    edits, expected = MORE[error]
    first, verdict, *_ = deepseek.call(nam56r_table.table, edits)
    assert first == expected and expected[1] in verdict


@pytest.mark.parametrize("error", OF_SISO)
def test_the_table_names_the_module_of_rank_one(deepseek, error):
    edits, expected = OF_SISO[error]
    assert deepseek.call(nam56r_table.table, edits, "nam56r_siso")[0] == expected


def test_the_table_names_the_module_of_a_wrong_constant(deepseek):
    changed = ((("attention", "rope_base"), 10_000),)
    assert deepseek.call(nam56r_table.table, (), "nam56r_tiny", changed)[0] == ATTENDED


def test_after_the_errors_nothing_differs(deepseek):
    assert deepseek.call(nam56r_table.table)[0] is None
