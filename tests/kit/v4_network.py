"""DeepSeek-V4 as a network on Megatron, and ``v4_model`` of plain torch with the same weights; for a worker only."""

import re

import torch
import v4_model as v4

from model.families.deepseek_v4 import SIZES, Size
from model.kinds import catalogue
from model.kinds.run import Run
from model.layers.deepseek_v4.router import affinities

LAYER = {  # ours in v4_model, in the network's first or second of two layers
    "attn_hc": (0, "self_attention_hyper_connection"),
    "attn_norm": (0, "input_layernorm"),
    "attention": (0, "self_attention"),
    "ffn_hc": (1, "mlp_hyper_connection"),
    "ffn_norm": (1, "pre_mlp_layernorm"),
    "moe": (1, "mlp"),
}
OUTSIDE = {
    "embedding": "embedding.word_embeddings",
    "head": "decoder.hc_head",
    "norm": "decoder.final_norm",
    "output": "output_layer",
    "mtp": "mtp.layers.0",
}


def size(c, **changed):
    """The size with a config's widths; its coefficients are large enough for each loss to be felt."""
    ratios = {"sliding": 0, "csa": c.csa, "hca": c.hca}
    return Size.model_validate(
        {
            "name": "drawn",
            "hidden": c.hidden,
            "heads": c.heads,
            "vocab": c.vocab,
            "sequence": 64,
            "rms_norm_eps": c.eps,
            "compress_ratios": [ratios[kind] for kind in c.kinds],
            "hash_layers": c.hashed,
            "attention": {
                "q_lora_rank": c.q_lora_rank,
                "head_dim": c.head_dim,
                "qk_rope_head_dim": c.rope_width,
                "o_groups": c.o_groups,
                "o_lora_rank": c.o_lora_rank,
                "window": c.window,
                "csa_ratio": c.csa,
                "hca_ratio": c.hca,
                "yarn": {"original_positions": c.original},
            },
            "indexer": {"heads": c.index_heads, "head_dim": c.index_width, "topk": c.index_topk, "loss_coeff": 0.5},
            "experts": {
                "count": c.experts,
                "topk": c.topk,
                "ffn": c.ffn,
                "scaling": c.scaling,
                "clamp": c.limit,
                "aux_loss_coeff": 0.3,
            },
            "hyper": {"streams": c.streams, "sinkhorn_iterations": c.iterations, "eps": c.hc_eps},
        }
        | changed
    )


def config(of):
    """``v4_model``'s of a size of the family."""
    a, i, e, m = of.attention, of.indexer, of.experts, of.hyper
    kinds = [layer.kind for layer in of.layers[::2]]
    return v4.Config(
        *(tuple(kinds), of.vocab, of.hidden, of.heads, a.head_dim, a.q_lora_rank, a.o_groups, a.o_lora_rank),
        *(a.window, a.csa_ratio, a.hca_ratio, i.heads, i.head_dim, i.topk, a.qk_rope_head_dim),
        *(a.yarn.original_positions, e.ffn, e.count, e.topk, of.hash_layers, e.scaling, e.clamp),
        *(m.streams, m.sinkhorn_iterations, m.eps, of.rms_norm_eps),
    )


TINY = SIZES["v4_tiny"]


def clear():
    """Megatron's trackers, which have a place for each layer of the model that they saw first, and the scales of losses
    that the steps of an engine left."""
    from megatron.core.transformer.experimental_attention_variant.dsa import (
        DSAIndexerLossAutoScaler,
        DSAIndexerLossLoggingHelper,
    )
    from megatron.core.transformer.moe import moe_logging
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler, MTPLossLoggingHelper

    for scaler in (DSAIndexerLossAutoScaler, MoEAuxLossAutoScaler):
        scaler.main_loss_backward_scale = None  # made by the first backward pass, or by an engine in another shape
    MTPLossAutoScaler.set_loss_scale(torch.ones((), device="cpu"))
    DSAIndexerLossLoggingHelper.tracker.clear()
    MTPLossLoggingHelper.tracker.clear()
    moe_logging.destroy_moe_metrics_tracker()


def network(of, seed=0, **run):
    """A new one, as training starts it."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from model.step.deepseek_v4 import DeepseekV4

    clear()
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    wanted = Run(**run)
    return DeepseekV4(of, wanted, catalogue.choose(of, wanted))


def mapped(name):
    """The network's name of one of ``v4_model``'s tensors; all experts' have ``{}`` for the number."""
    if found := re.match(r"(?:layers\.(\d+)|(mtp_layer))\.(\w+)\.(.*)", name):
        number, _, part, rest = found.groups()
        second, ours = LAYER[part]
        place = "mtp.layers.0.mtp_model_layer.layers." if number is None else "decoder.layers."
        rest = re.sub(r"^experts\.(linear_fc[12])$", r"experts.local_experts.{}.\1.weight", rest)
        return f"{place}{2 * int(number or 0) + second}.{ours}.{rest}"
    first, _, rest = name.partition(".")
    return f"{OUTSIDE[first]}.{rest}"


def to_network(tensors):
    """{the network's name: tensor} of {``v4_model``'s name: tensor}."""
    found = {}
    for name, tensor in tensors.items():
        key = mapped(name)
        each = {key.format(number): part for number, part in enumerate(tensor)} if "{}" in key else {key: tensor}
        found |= each
    return found


def to_plain(tensors, names):
    """``to_network`` back: {each of ``names``: tensor} of {the network's name: tensor}, experts in one."""
    found = {}
    for name in names:
        key = mapped(name)
        if "{}" in key:
            count = sum(re.fullmatch(re.escape(key).replace(r"\{\}", r"\d+"), other) is not None for other in tensors)
            found[name] = torch.stack([tensors[key.format(number)] for number in range(count)])
        else:
            found[name] = tensors[key]
    return found


def held(module):
    """All that a checkpoint keeps of it."""
    return dict(module.state_dict(keep_vars=True))


def pair(of, seed=0, spread=0.15, **run):
    """The network and the model of plain torch, fp32, every number of both drawn alike."""
    plain = v4.fill(v4.Whole(config(of)), seed, spread)
    built = network(of, **run)
    given, own = to_network(held(plain)), held(built)
    assert {name for name in own if not name.endswith("_extra_state")} == set(given)
    with torch.no_grad():
        for name, tensor in given.items():
            assert own[name].shape == tensor.shape and own[name].dtype == tensor.dtype, name
            own[name].copy_(tensor)
    return built, plain


def packed(cu):
    from model.layers.common.packed import packed as record

    return record(cu, int(cu.diff().max()))


def batch(tokens, cu):
    """What the network is given with labels: a document's last token has none."""
    from model.layers.common.documents import positions

    labels = v4.targets(tokens, cu, 1)
    counts = labels >= 0
    return {
        "tokens": tokens[None],
        "positions": positions(cu, len(tokens))[None],
        "packed_seq_params": packed(cu),
        "labels": labels.clamp(min=0)[None],
        "loss_mask": counts[None].float(),
    }


def inputs(tokens, cu):
    given = batch(tokens, cu)
    return {name: given[name] for name in ("tokens", "positions", "packed_seq_params")}


def states(built, tokens, cu):
    """Logits and MTP's logits [T, V] of the network."""
    seen = []
    hook = built.mtp.register_forward_hook(lambda module, given, result: seen.append(result))
    try:
        logits = built(**inputs(tokens, cu))[0]
    finally:
        hook.remove()
    return logits, built.output_layer.logits(seen[0][len(tokens) :, 0])


def routers(plain):
    """(name, module) of those that learn to choose."""
    return [(name, module) for name, module in plain.named_modules() if isinstance(module, plain.m["router"].Router)]


def balance(x, router, topk):
    """E times the sum over experts of their share of the choices and their mean score, of one router over a row."""
    scores = affinities(x, router.weight).flatten(0, -2)
    count = scores.shape[-1]
    shares = torch.nn.functional.one_hot(scores.topk(topk).indices, count).sum((0, 1)) / (topk * len(scores))
    return count * (shares * (scores / scores.sum(-1, keepdim=True)).mean(0)).sum()


def plain_losses(of, plain, tokens, cu):
    """Each loss of the model of plain torch, and what it said."""
    entered, hooks = {}, []
    for name, module in routers(plain):
        hooks.append(module.register_forward_hook(lambda _, given, __, name=name: entered.update({name: given[0]})))
    said = plain(tokens, cu, index_loss=True)
    for hook in hooks:
        hook.remove()
    found = v4.losses(said, tokens, cu)
    sees = ((v4_positions(cu) + 1) // of.attention.csa_ratio > 0).sum()
    index = [a.index_loss.sum() / sees for a in said["attended"] if a.index_loss is not None]
    aux = [balance(entered[name], module, of.experts.topk) for name, module in routers(plain)]
    return found | {"index": sum(index), "aux": sum(aux)}, said


def v4_positions(cu):
    """Of each token within its document."""
    return torch.cat([torch.arange(n) for n in cu.diff().tolist()])


def total(of, found):
    """What is trained on."""
    return (
        found["lm"]
        + of.mtp_loss_coeff * found["mtp"]
        + of.experts.aux_loss_coeff * found["aux"]
        + of.indexer.loss_coeff * found["index"]
    )


def network_losses(of, built, tokens, cu):
    """Each loss of the network, after its backward pass."""
    from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossLoggingHelper
    from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    from model.patched import dialect

    clear()
    given = batch(tokens, cu)
    loss = (built(**given)[0] * given["loss_mask"][0]).sum() / given["loss_mask"].sum()
    loss.backward()
    return {
        "lm": float(loss.detach()),
        "mtp": float(MTPLossLoggingHelper.tracker[dialect.MTP_LOSSES].sum()),
        "index": float(DSAIndexerLossLoggingHelper.tracker["values"].sum()) / of.indexer.loss_coeff,
        "aux": sum(float(entry.values.sum()) for entry in get_moe_metrics_tracker().metrics.values()),
    }


def off(ours, theirs, least=1.0):
    """The largest difference, as a part of their largest value where that is above ``least``."""
    gap = (ours.detach() - theirs.detach()).abs().max()
    return float(gap / theirs.detach().abs().max().clamp(min=least))


def engine(of, optimizer="adamw", **run):
    """A rank of one with the size's network and its optimizer."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from model.definition.recipes import Recipe
    from model.step.engine import Engine

    clear()
    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0, force_reset_rng=True)
    wanted = Run(**run)
    recipe = Recipe(size=of.name, steps=4, warmup=0, learning_rate=1e-2, optimizer=optimizer, bf16=wanted.bf16)
    return Engine(of, wanted, recipe, catalogue.choose(of, wanted))


def micro_batch(tokens, cu):
    from model.data.rows.loader import Batch

    given = batch(tokens, cu)
    row = {name: given[name][0] for name in ("tokens", "labels", "loss_mask", "positions")}
    return Batch(**row, cu_seqlens=cu, max_seqlen=int(cu.diff().max()), structure=None)
