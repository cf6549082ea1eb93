"""Each tensor's shape and the parameters by part, from the definition alone; a test builds each size on the meta device
and compares.

Names are a checkpoint's; shapes are those of megatron-core 0.19.0's modules (5be9626709af2722333bf54797c954c09edeada3),
mamba-ssm 2.3.2.post1's Mamba3 and ``model.layers``. Like in Megatron's hybrid spec, MLA and the indexer have no norms
on their low-rank activations.
"""

from __future__ import annotations

import math
from itertools import count, islice

from model.definition.sizes import Size

Shapes = dict[str, tuple[int, ...]]
BUFFER = "mlp.router.expert_bias"  # the routers' selection bias, the only tensor that is kept and no parameter


def mamba3_shapes(size: Size) -> Shapes:
    """in_proj, out_proj, B and C biases and norms, D and dt biases, the projections of MIMO, the layer's norm."""
    m, h, heads = size.mamba, size.hidden, size.mamba_heads
    inner, angles = h * m.expand, int(m.state * m.rope_fraction) // 2
    found: Shapes = {
        "norm.weight": (h,),
        "mixer.mamba.in_proj.weight": (2 * inner + 2 * m.state * m.groups * m.rank + 3 * heads + angles, h),
        "mixer.mamba.out_proj.weight": (h, inner),
        **{f"mixer.mamba.{name}_bias": (heads, m.rank, m.state) for name in "BC"},
        **{f"mixer.mamba.{name}_norm.weight": (m.state,) for name in "BC"},
        **{f"mixer.mamba.{name}": (heads,) for name in ("D", "dt_bias")},
    }
    return found | ({f"mixer.mamba.mimo_{name}": (heads, m.rank, m.head_dim) for name in "xzo"} if m.mimo else {})


def mla_shapes(size: Size) -> Shapes:
    """Low-rank query, joint low-rank key and value with the shared rotary key, output projection, the layer's norm."""
    a, h, heads = size.attention, size.hidden, size.heads
    return {
        "input_layernorm.weight": (h,),
        "self_attention.linear_q_down_proj.weight": (a.q_lora_rank, h),
        "self_attention.linear_q_up_proj.weight": (heads * a.qk_dim, a.q_lora_rank),
        "self_attention.linear_kv_down_proj.weight": (a.kv_lora_rank + a.qk_rope_dim, h),
        "self_attention.linear_kv_up_proj.weight": (heads * (a.qk_nope_dim + a.v_dim), a.kv_lora_rank),
        "self_attention.linear_proj.weight": (h, heads * a.v_dim),
    }


def indexer_shapes(size: Size) -> Shapes:
    """Query and key projections, LayerNorm on the key (weight and bias), weights of the heads."""
    i, h = size.indexer, size.hidden
    found: Shapes = {
        "linear_wq_b.weight": (i.heads * i.head_dim, size.attention.q_lora_rank),
        "linear_wk.weight": (i.head_dim, h),
        "k_norm.weight": (i.head_dim,),
        "k_norm.bias": (i.head_dim,),
        "linear_weights_proj.weight": (i.heads, h),
    }
    return _under("self_attention.core_attention.indexer.", found)


def moe_shapes(size: Size) -> Shapes:
    """Experts as one tensor each projection, shared expert, router and its selection bias, the layer's norm."""
    e, h = size.experts, size.hidden
    return {
        "pre_mlp_layernorm.weight": (h,),
        "mlp.experts.experts.linear_fc1.weight": (e.count, e.ffn, h),
        "mlp.experts.experts.linear_fc2.weight": (e.count, h, e.ffn),
        "mlp.shared_experts.linear_fc1.weight": (e.shared_ffn, h),
        "mlp.shared_experts.linear_fc2.weight": (h, e.shared_ffn),
        "mlp.router.weight": (e.count, h),
        BUFFER: (e.count,),
    }


def m2rnn_shapes(size: Size) -> Shapes:
    """in_proj to q, k, v and gate, forget_proj; convolution with bias on q, k, v; W, D and norm on v's channels; A_log
    and dt_bias; out_proj; the layer's norm."""
    r, h = size.m2rnn, size.hidden
    inner = r.heads * r.v_dim
    mixed = 2 * r.k_dim + inner
    return {
        "norm.weight": (h,),
        "mixer.in_proj.weight": (mixed + inner, h),
        "mixer.forget_proj.weight": (r.heads, h),
        "mixer.conv_weight": (mixed, r.conv),
        "mixer.conv_bias": (mixed,),
        "mixer.W": (r.heads, r.v_dim, r.v_dim),
        "mixer.D": (r.heads, r.v_dim),
        "mixer.norm.weight": (inner,),
        "mixer.A_log": (r.heads,),
        "mixer.dt_bias": (r.heads,),
        "mixer.out_proj.weight": (h, inner),
    }


def mtp_shapes(size: Size) -> Shapes:
    """Two norms and the 2h -> h projection, dense MLA, dense MLP with its norm, the depth's last norm."""
    h = size.hidden
    return {
        **{f"{name}.weight": (h,) for name in ("enorm", "hnorm", "final_layernorm")},
        "eh_proj.weight": (h, 2 * h),
        **_under("mtp_model_layer.layers.0.", mla_shapes(size)),
        "mtp_model_layer.layers.1.pre_mlp_layernorm.weight": (h,),
        "mtp_model_layer.layers.1.mlp.linear_fc1.weight": (size.ffn, h),
        "mtp_model_layer.layers.1.mlp.linear_fc2.weight": (h, size.ffn),
    }


def ngram_shapes(size: Size) -> Shapes:
    n, tables = size.ngram, len(size.ngram.orders) * size.ngram.heads
    rows = sum(prime_sizes(n.rows, tables))
    return {"table.weight": (rows, n.dim), "projection.weight": (size.hidden, tables * n.dim)}


def structure_shapes(size: Size) -> Shapes:
    s = size.structure
    tables: Shapes = {f"embeddings.{name}.weight": (classes, s.bottleneck) for name, classes in s.fields.items()}
    return tables | {"projection.weight": (size.hidden, s.bottleneck)}


OF_KIND = {
    "mamba3": mamba3_shapes,
    "mla": mla_shapes,
    "dsa": mla_shapes,
    "moe": moe_shapes,
    "m2rnn": m2rnn_shapes,
}


def shapes(size: Size) -> Shapes:
    """{a checkpoint's key: shape} of all that a checkpoint keeps of the model, a layer's experts as one."""
    found: Shapes = {
        "embedding.word_embeddings.weight": (size.vocab, size.hidden),
        **_under("ngram.", ngram_shapes(size)),
        **_under("structure.", structure_shapes(size)),
        "decoder.final_norm.weight": (size.hidden,),
        "output_layer.weight": (size.vocab, size.hidden),
    }
    for layer in size.layers:
        own = OF_KIND[layer.kind](size) | (indexer_shapes(size) if layer.indices_from == layer.number else {})
        found |= _under(f"decoder.layers.{layer.number - 1}.", own)
    for depth in range(size.mtp_depths):
        found |= _under(f"mtp.layers.{depth}.", mtp_shapes(size))
    return found


def _under(prefix: str, found: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in found.items()}


def number(found: Shapes) -> int:
    """Of parameters in tensors of these shapes."""
    return sum(math.prod(shape) for name, shape in found.items() if name != BUFFER)


def by_part(size: Size) -> dict[str, int]:
    """Parameters of each part of the model; their sum is its total."""
    return {
        "embedding": size.vocab * size.hidden,
        "n-gram hash embedding": number(ngram_shapes(size)),
        "structure embedding": number(structure_shapes(size)),
        "Mamba-3": size.count("mamba3") * number(mamba3_shapes(size)),
        "attention": (size.count("mla") + size.count("dsa")) * number(mla_shapes(size)),
        "indexers": sum(layer.indices_from == layer.number for layer in size.layers) * number(indexer_shapes(size)),
        "MoE": size.count("moe") * number(moe_shapes(size)),
        "M²RNN": size.count("m2rnn") * number(m2rnn_shapes(size)),
        "final norm": size.hidden,
        "head": size.vocab * size.hidden,
        "MTP": size.mtp_depths * number(mtp_shapes(size)),
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
