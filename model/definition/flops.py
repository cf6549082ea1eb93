"""FLOPs of a training step per token: Megatron's published formula, and the matrix products that are really computed.

A multiply-add is two FLOPs; a backward pass is counted as two forwards. Publish tokens/s/GPU first, then both figures:
the formula overstates MLA (as if it were full multi-head attention) and understates Mamba-3's rank.

Each function below ``megatron`` is of one layer's forward pass, or what it says, per token.
"""

from __future__ import annotations

from model.definition.sizes import Size

BACKWARD = 3  # forward + backward over forward


def megatron(size: Size, sequence: int | None = None) -> float:
    """``hybrid_flops`` of Megatron-LM's training.py: MLA and DSA as full attention, M²RNN as Mamba-2."""
    s, h, e, m = sequence or size.sequence, size.hidden, size.experts, size.mamba
    attention = 4 * h * (2 * h + s / 2)
    inner = m.expand * h
    mamba = 2 * h * (2 * inner + 2 * m.state * m.groups + size.mamba_heads) + 7 * inner * m.state + 2 * inner * h
    moe = 4 * h * (e.ffn * e.topk + e.shared_ffn)
    main = (
        (size.count("mla") + size.count("dsa")) * attention
        + (size.count("mamba3") + size.count("m2rnn")) * mamba
        + size.count("moe") * moe
    )
    mtp = size.mtp_depths * (attention + 4 * h * size.ffn)
    return BACKWARD * (main + mtp + 2 * h * size.vocab * (1 + size.mtp_depths))


def mla_projections(size: Size) -> float:
    a, h = size.attention, size.hidden
    down = h * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim)
    up = a.q_lora_rank * size.heads * a.qk_dim + a.kv_lora_rank * size.heads * (a.qk_nope_dim + a.v_dim)
    return 2 * (down + up + size.heads * a.v_dim * h)


def mla_scores(size: Size, keys: float) -> float:
    """Scores and values over ``keys`` keys a query."""
    return 2 * size.heads * (size.attention.qk_dim + size.attention.v_dim) * keys


def indexer_projections(size: Size) -> float:
    i = size.indexer
    return 2 * (size.attention.q_lora_rank * i.heads * i.head_dim + size.hidden * (i.head_dim + i.heads))


def indexer_scores(size: Size, keys: float) -> float:
    return 2 * size.indexer.heads * size.indexer.head_dim * keys


def mamba3_projections(size: Size) -> float:
    m, h = size.mamba, size.hidden
    inner = h * m.expand
    in_proj = 2 * inner + 2 * m.state * m.groups * m.rank + 3 * size.mamba_heads + int(m.state * m.rope_fraction) // 2
    return 2 * h * (in_proj + inner)


def mamba3_chunks(size: Size) -> float:
    """A chunk's four products a head over ``chunk * rank`` rows: QK', its V, Q state, K'V."""
    m = size.mamba
    rows = m.chunk * m.rank
    return size.mamba_heads * 2 * rows * (rows * (m.state + m.head_dim) + 2 * m.state * m.head_dim) / m.chunk


def moe(size: Size) -> float:
    e, h = size.experts, size.hidden
    return 2 * h * (2 * (e.topk * e.ffn + e.shared_ffn) + e.count)


def m2rnn_projections(size: Size) -> float:
    r, h = size.m2rnn, size.hidden
    inner = r.heads * r.v_dim
    return 2 * h * (2 * r.k_dim + 2 * inner + r.heads) + 2 * inner * h


def m2rnn_state(size: Size) -> float:
    """The recurrence's products, one token after another: h W, k v', q'h."""
    r = size.m2rnn
    return 2 * r.heads * r.k_dim * r.v_dim * (r.v_dim + 2)


def mtp_projections(size: Size) -> float:
    """Of one depth: MLA's, from 2h to h, the dense MLP."""
    return mla_projections(size) + 4 * size.hidden**2 + 4 * size.hidden * size.ffn


def entrance(size: Size) -> float:
    """From the hash tables' rows and the structure's bottleneck to the hidden width."""
    return 2 * size.hidden * (len(size.ngram.orders) * size.ngram.heads * size.ngram.dim + size.structure.bottleneck)


def built(size: Size, sequence: int | None = None) -> dict[str, float]:
    """Matrix products of a training step per token, by part; rows are one document of ``sequence`` tokens."""
    s = sequence or size.sequence
    causal = s / 2
    sparse = min(float(size.indexer.topk), causal)
    computing = sum(layer.indices_from == layer.number for layer in size.layers)
    mtp = mtp_projections(size) + mla_scores(size, causal)
    mla, dsa = mla_projections(size) + mla_scores(size, causal), mla_projections(size) + mla_scores(size, sparse)
    forward = {
        "Mamba-3": size.count("mamba3") * (mamba3_projections(size) + mamba3_chunks(size)),
        "MoE": size.count("moe") * moe(size),
        "logits": 2 * size.hidden * size.vocab * (1 + size.mtp_depths),
        "MTP": size.mtp_depths * mtp,
        "attention": size.count("mla") * mla + size.count("dsa") * dsa,
        "indexers": computing * (indexer_projections(size) + indexer_scores(size, causal)),
        "M²RNN": size.count("m2rnn") * (m2rnn_projections(size) + m2rnn_state(size)),
        "embeddings": entrance(size),
    }
    return {part: BACKWARD * value for part, value in forward.items()}


def total(size: Size, sequence: int | None = None) -> float:
    """All of ``built``."""
    return sum(built(size, sequence).values())
