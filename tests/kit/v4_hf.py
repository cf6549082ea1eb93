"""``transformers``' DeepSeek-V4 with the weights of ours: single unpadded documents in fp32 are what it is right on."""

import importlib.metadata

import pytest
import torch
import v4_model as v4

VERSION = "5.24.0"
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
KINDS = {"sliding": "sliding_attention", "csa": CSA, "hca": HCA}
IN_LAYER = (  # ours, theirs; the longer ones first
    ("attention.core_attention.indexer.compressor.linear_wkv", "self_attn.compressor.indexer.kv_proj"),
    ("attention.core_attention.indexer.compressor.linear_wgate", "self_attn.compressor.indexer.gate_proj"),
    ("attention.core_attention.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ("attention.core_attention.indexer.compressor.norm", "self_attn.compressor.indexer.kv_norm"),
    ("attention.core_attention.indexer.linear_wq_b", "self_attn.compressor.indexer.q_b_proj"),
    ("attention.core_attention.indexer.linear_weights_proj", "self_attn.compressor.indexer.scorer.weights_proj"),
    ("attention.core_attention.compressor.linear_wkv", "self_attn.compressor.kv_proj"),
    ("attention.core_attention.compressor.linear_wgate", "self_attn.compressor.gate_proj"),
    ("attention.core_attention.compressor.ape", "self_attn.compressor.position_bias"),
    ("attention.core_attention.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attention.linear_q_down_proj", "self_attn.q_a_proj"),
    ("attention.q_layernorm", "self_attn.q_a_norm"),
    ("attention.linear_q_up_proj", "self_attn.q_b_proj"),
    ("attention.linear_kv_proj", "self_attn.kv_proj"),
    ("attention.kv_layernorm", "self_attn.kv_norm"),
    ("attention.core_attention.attn_sink", "self_attn.sinks"),
    ("attention.linear_o_group_proj", "self_attn.o_a_proj"),
    ("attention.linear_proj", "self_attn.o_b_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("moe.router.expert_bias", "mlp.gate.e_score_correction_bias"),
    ("moe.router", "mlp.gate"),
    ("moe.experts.linear_fc1", "mlp.experts.gate_up_proj"),
    ("moe.experts.linear_fc2", "mlp.experts.down_proj"),
    ("moe.shared_experts.linear_fc2", "mlp.shared_experts.down_proj"),
)
OUTSIDE = {
    "embedding.": "model.embed_tokens.",
    "output.": "lm_head.",
    "head.": "model.hc_head.hc_",
    "norm.": "model.norm.",
    "layers.": "model.layers.",
}
PACKED = "shared_experts.linear_fc1.weight"  # they have its halves apart


def needed():
    """Skips the test where the version that was compared is not installed."""
    pytest.importorskip("transformers")
    found = importlib.metadata.version("transformers")
    if found != VERSION:
        pytest.skip(f"transformers {found} is installed; it was compared with {VERSION}")


def config(c):
    from transformers import DeepseekV4Config

    yarn = {"rope_type": "yarn", "factor": 16.0, "beta_fast": 32, "beta_slow": 1}
    return DeepseekV4Config(
        vocab_size=c.vocab,
        hidden_size=c.hidden,
        moe_intermediate_size=c.ffn,
        num_hidden_layers=len(c.kinds),
        num_attention_heads=c.heads,
        head_dim=c.head_dim,
        q_lora_rank=c.q_lora_rank,
        num_experts_per_tok=c.topk,
        n_routed_experts=c.experts,
        o_groups=c.o_groups,
        o_lora_rank=c.o_lora_rank,
        index_n_heads=c.index_heads,
        index_head_dim=c.index_width,
        index_topk=c.index_topk,
        sliding_window=c.window,
        hc_mult=c.streams,
        hc_sinkhorn_iters=c.iterations,
        hc_eps=c.hc_eps,
        rms_norm_eps=c.eps,
        qk_rope_head_dim=c.rope_width,
        swiglu_limit=c.limit,
        routed_scaling_factor=c.scaling,
        layer_types=[KINDS[kind] for kind in c.kinds],
        compress_rates={CSA: c.csa, HCA: c.hca},
        num_hash_layers=c.hashed,
        rope_parameters={**yarn, "original_max_position_embeddings": c.original},
        max_position_embeddings=1024,
        pad_token_id=None,
    )


def in_hyper(name):
    """Their name of a hyper-connection's tensor, or of the head's."""
    return name.replace("mapping_proj.weight", "fn").replace("bias", "base")


def named(name):
    """Their name of one of our tensors."""
    first = next(ours for ours in OUTSIDE if name.startswith(ours))
    if first == "head." or "_hc." in name:
        name = in_hyper(name)
    if first == "layers.":
        ours, theirs = next(pair for pair in IN_LAYER if pair[0] in name) if "_hc." not in name else ("", "")
        name = name.replace(ours, theirs, 1)
    return OUTSIDE[first] + name.removeprefix(first)


def theirs_of(tensors):
    """{their name: tensor} of {our name: tensor}."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(PACKED):
            down = named(name.replace("linear_fc1", "linear_fc2"))
            for half, part in zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True):
                found[down.replace("down_proj", half)] = part
        else:
            found[named(name)] = tensor
    return found


def pair(c, seed=0, spread=0.15):
    """Our model without MTP and theirs with its weights, fp32."""
    needed()
    from transformers import DeepseekV4ForCausalLM

    ours = v4.fill(v4.Whole(c, mtp=False), seed, spread)
    theirs = DeepseekV4ForCausalLM(config(c)).train()
    theirs.set_experts_implementation("eager")  # torch's grouped product wants widths in multiples of 16 bytes
    held = dict([*theirs.named_parameters(), *theirs.named_buffers()])
    given = theirs_of(dict([*ours.named_parameters(), *ours.named_buffers()]))
    assert set(given) == {name for name in held if "rotary_emb" not in name}
    with torch.no_grad():
        for name, tensor in given.items():
            assert held[name].shape == tensor.shape, name
            held[name].copy_(tensor)
    return ours, theirs


def off(ours, theirs, least=1.0):
    """The largest difference, as a part of their largest value where that is above ``least``."""
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=least)) if theirs.numel() else 0.0


def off_gradient(ours, theirs):
    """``off`` of gradients, which are small where a mean loss is far away."""
    return off(ours, theirs, 1e-4)


def gradients(output, module, *inputs, seed=3):
    """{name: gradient} of the module's parameters and of the inputs by number, for a drawn gradient of the output."""
    rng = torch.Generator().manual_seed(seed)
    dy = torch.randn(output.shape, generator=rng, dtype=output.dtype)
    wanted = {**dict(module.named_parameters()), **{str(i): x for i, x in enumerate(inputs)}}
    found = torch.autograd.grad(output, list(wanted.values()), dy, allow_unused=True)
    return dict(zip(wanted, found, strict=True))
