"""FLOPs of a training step per token: Megatron's published formula, and the matrix products that are really computed.

A multiply-add is two FLOPs; a backward pass is counted as two forwards. Publish tokens/s/GPU first, then both figures:
the formula overstates MLA (as if it were full multi-head attention) and understates Mamba-3's rank.
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


def _mla(size: Size, keys: float) -> float:
    """Projections, then scores and values over ``keys`` keys a query."""
    a, h = size.attention, size.hidden
    down = h * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim)
    up = a.q_lora_rank * size.heads * a.qk_dim + a.kv_lora_rank * size.heads * (a.qk_nope_dim + a.v_dim)
    return 2 * (down + up + size.heads * a.v_dim * h) + 2 * size.heads * (a.qk_dim + a.v_dim) * keys


def _indexer(size: Size, keys: float) -> float:
    i, h = size.indexer, size.hidden
    projections = size.attention.q_lora_rank * i.heads * i.head_dim + h * (i.head_dim + i.heads)
    return 2 * projections + 2 * i.heads * i.head_dim * keys


def _mamba3(size: Size) -> float:
    """Projections, and a chunk's four products a head over ``chunk * rank`` rows: QK', its V, Q state, K'V."""
    m, h = size.mamba, size.hidden
    inner, rows = h * m.expand, m.chunk * m.rank
    in_proj = 2 * inner + 2 * m.state * m.groups * m.rank + 3 * size.mamba_heads + int(m.state * m.rope_fraction) // 2
    chunk = 2 * rows * (rows * (m.state + m.head_dim) + 2 * m.state * m.head_dim)
    return 2 * h * (in_proj + inner) + size.mamba_heads * chunk / m.chunk


def _moe(size: Size) -> float:
    e, h = size.experts, size.hidden
    return 2 * h * (2 * (e.topk * e.ffn + e.shared_ffn) + e.count)


def _m2rnn(size: Size) -> float:
    r, h = size.m2rnn, size.hidden
    inner = r.heads * r.v_dim
    state = r.heads * r.k_dim * r.v_dim  # h W, k v', q'h
    return 2 * h * (2 * r.k_dim + 2 * inner + r.heads) + 2 * inner * h + 2 * state * (r.v_dim + 2)


def built(size: Size, sequence: int | None = None) -> dict[str, float]:
    """Matrix products of a training step per token, by part; rows are one document of ``sequence`` tokens."""
    s = sequence or size.sequence
    causal = s / 2
    sparse = min(float(size.indexer.topk), causal)
    computing = sum(layer.indices_from == layer.number for layer in size.layers)
    hash_width = len(size.ngram.orders) * size.ngram.heads * size.ngram.dim
    mtp = _mla(size, causal) + 4 * size.hidden**2 + 4 * size.hidden * size.ffn
    forward = {
        "Mamba-3": size.count("mamba3") * _mamba3(size),
        "MoE": size.count("moe") * _moe(size),
        "logits": 2 * size.hidden * size.vocab * (1 + size.mtp_depths),
        "MTP": size.mtp_depths * mtp,
        "attention": size.count("mla") * _mla(size, causal) + size.count("dsa") * _mla(size, sparse),
        "indexers": computing * _indexer(size, causal),
        "M²RNN": size.count("m2rnn") * _m2rnn(size),
        "embeddings": 2 * size.hidden * (hash_width + size.structure.bottleneck),
    }
    return {part: BACKWARD * value for part, value in forward.items()}


def total(size: Size, sequence: int | None = None) -> float:
    """All of ``built``."""
    return sum(built(size, sequence).values())
