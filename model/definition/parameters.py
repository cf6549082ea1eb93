"""Parameters by part, from the definition alone; a test builds each size on the meta device and compares.

Shapes are those of megatron-core 0.19.0's modules (5be9626709af2722333bf54797c954c09edeada3), mamba-ssm 2.3.2.post1's
Mamba3 and ``model.layers``. Like in Megatron's hybrid spec, MLA and the indexer have no norms on their low-rank
activations.
"""

from __future__ import annotations

from itertools import count, islice

from model.definition.sizes import Size


def mamba3(size: Size) -> int:
    """in_proj, out_proj, B and C biases and norms, D and dt biases, the projections of MIMO, the layer's norm."""
    m, h, heads = size.mamba, size.hidden, size.mamba_heads
    inner = h * m.expand
    angles = int(m.state * m.rope_fraction) // 2
    in_proj = h * (2 * inner + 2 * m.state * m.groups * m.rank + 3 * heads + angles)
    biases = 2 * heads * m.rank * m.state
    projections = 3 * heads * m.rank * m.head_dim if m.mimo else 0
    return in_proj + inner * h + biases + 2 * m.state + 2 * heads + projections + h


def mla(size: Size) -> int:
    """Low-rank query, joint low-rank key and value with the shared rotary key, output projection, the layer's norm."""
    a, h = size.attention, size.hidden
    query = h * a.q_lora_rank + a.q_lora_rank * size.heads * a.qk_dim
    latent = h * (a.kv_lora_rank + a.qk_rope_dim) + a.kv_lora_rank * size.heads * (a.qk_nope_dim + a.v_dim)
    return query + latent + size.heads * a.v_dim * h + h


def indexer(size: Size) -> int:
    """Query and key projections, LayerNorm on the key (weight and bias), weights of the heads."""
    i, h = size.indexer, size.hidden
    return size.attention.q_lora_rank * i.heads * i.head_dim + h * i.head_dim + 2 * i.head_dim + h * i.heads


def moe(size: Size) -> int:
    """Experts, shared expert, router, the layer's norm; the selection bias is a buffer."""
    e, h = size.experts, size.hidden
    return e.count * 2 * h * e.ffn + 2 * h * e.shared_ffn + e.count * h + h


def m2rnn(size: Size) -> int:
    """in_proj to q, k, v and gate, forget_proj; convolution with bias on q, k, v; W, D and norm on v's channels; A_log
    and dt_bias; out_proj; the layer's norm."""
    r, h = size.m2rnn, size.hidden
    inner = r.heads * r.v_dim
    mixed = 2 * r.k_dim + inner
    projections = h * (mixed + inner + r.heads)
    return projections + mixed * (r.conv + 1) + inner * (r.v_dim + 2) + 2 * r.heads + inner * h + h


def mtp_depth(size: Size) -> int:
    """Two norms and the 2h -> h projection, dense MLA, dense MLP with its norm, the depth's last norm."""
    h = size.hidden
    return 2 * h * h + 3 * h + mla(size) + 2 * h * size.ffn + h


def ngram(size: Size) -> int:
    tables = len(size.ngram.orders) * size.ngram.heads
    return sum(prime_sizes(size.ngram.rows, tables)) * size.ngram.dim + tables * size.ngram.dim * size.hidden


def structure(size: Size) -> int:
    return (sum(size.structure.fields.values()) + size.hidden) * size.structure.bottleneck


def by_part(size: Size) -> dict[str, int]:
    """Parameters of each part of the model; their sum is its total."""
    return {
        "embedding": size.vocab * size.hidden,
        "n-gram hash embedding": ngram(size),
        "structure embedding": structure(size),
        "Mamba-3": size.count("mamba3") * mamba3(size),
        "attention": (size.count("mla") + size.count("dsa")) * mla(size),
        "indexers": sum(layer.indices_from == layer.number for layer in size.layers) * indexer(size),
        "MoE": size.count("moe") * moe(size),
        "M²RNN": size.count("m2rnn") * m2rnn(size),
        "final norm": size.hidden,
        "head": size.vocab * size.hidden,
        "MTP": size.mtp_depths * mtp_depth(size),
    }


def total(size: Size) -> int:
    return sum(by_part(size).values())


def active(size: Size) -> int:
    """Parameters that one token meets: all but the experts that its router leaves out."""
    idle = (size.experts.count - size.experts.topk) * 2 * size.hidden * size.experts.ffn * size.count("moe")
    return total(size) - idle


def prime_sizes(rows: int, tables: int) -> tuple[int, ...]:
    """The first ``tables`` primes from 0.04% below ``rows`` on: 16 from 499,801 to 500,041 have 7,998,862 in all."""
    return tuple(islice((n for n in count(max(2, rows - rows // 2500)) if _is_prime(n)), tables))


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
