"""DeepSeek-V4 as a network on Megatron, and ``v4_model`` of plain torch with the same weights; for a worker only."""

import re

import torch
import v4_model as v4

from model.alignment.deepseek_v4 import dims
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


TINY = SIZES["v4_tiny"]


def network(of, seed=0, **run):
    """A new one, as training starts it."""
    from model.alignment import trained as ours

    wanted = Run(**run)
    return ours.network(of, wanted, catalogue.choose(of, wanted), seed)


def mapped(name):
    """A checkpoint's key of one of ``v4_model``'s tensors."""
    if found := re.match(r"(?:layers\.(\d+)|(mtp_layer))\.(\w+)\.(.*)", name):
        number, _, part, rest = found.groups()
        second, ours = LAYER[part]
        place = "mtp.layers.0.mtp_model_layer.layers." if number is None else "decoder.layers."
        return f"{place}{2 * int(number or 0) + second}.{ours}.{in_mixture(rest)}"
    first, _, rest = name.partition(".")
    return f"{OUTSIDE[first]}.{rest}"


def in_mixture(name):
    """Within a layer; all names but those of routed experts are the same."""
    return re.sub(r"^experts\.(linear_fc[12])$", r"experts.experts.\1.weight", name)


def to_network(tensors):
    """{a checkpoint's key: tensor} of {``v4_model``'s name: tensor}."""
    return {mapped(name): tensor for name, tensor in tensors.items()}


def held(module):
    """All that a checkpoint keeps of it."""
    return dict(module.state_dict(keep_vars=True))


def pair(of, seed=0, spread=0.15, **run):
    """The network and the model of plain torch, fp32, every number of both drawn alike."""
    from model.alignment import trained as ours

    plain = v4.fill(v4.Whole(dims.config(of)), seed, spread)
    built = network(of, **run)
    given = to_network(held(plain))
    assert {key: (t.shape, t.dtype) for key, t in ours.whole(built).items()} == {
        key: (t.shape, t.dtype) for key, t in given.items()
    }
    ours.fill(built, given)
    return built, plain


def states(*given):
    from model.alignment import trained as ours

    return ours.states(*given)


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
    aux = [balance(entered[name], module, of.experts.topk) for name, module in routers(plain)]
    return v4.losses(said, tokens, cu, dims.config(of)) | {"aux": sum(aux)}, said


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
    from model.alignment import trained as ours

    loss = ours.loss(built, tokens, cu)
    loss.backward()
    return {"lm": float(loss.detach())} | ours.tracked(of)


def off(ours, theirs, least=1.0):
    """The largest difference, as a part of their largest value where that is above ``least``."""
    gap = (ours.detach() - theirs.detach()).abs().max()
    return float(gap / theirs.detach().abs().max().clamp(min=least))


def engine(of, optimizer="adamw", **run):
    """A rank of one with the size's network and its optimizer."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from model.alignment.trained import clear
    from model.definition.recipes import Recipe
    from model.step.engine import Engine

    clear()
    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0, force_reset_rng=True)
    wanted = Run(**run)
    recipe = Recipe(size=of.name, steps=4, warmup=0, learning_rate=1e-2, optimizer=optimizer, bf16=wanted.bf16)
    return Engine(of, wanted, recipe, catalogue.choose(of, wanted))


def micro_batch(tokens, cu):
    from model.alignment.trained import batch
    from model.data.rows.loader import Batch

    given = batch(tokens, cu)
    row = {name: given[name][0] for name in ("tokens", "labels", "loss_mask", "positions")}
    return Batch(**row, cu_seqlens=cu, max_seqlen=int(cu.diff().max()), structure=None)


def logits_of(checkpoint, ids):
    """What the network that is trained says with a checkpoint's weights to one document: rows of numbers."""
    from model.alignment import trained as ours
    from model.saved import reading

    built = network(TINY)
    ours.fill(built, reading.read(checkpoint, reading.shapes(checkpoint)))
    with torch.no_grad():
        logits, _ = ours.states(built, torch.tensor(ids), torch.tensor([0, len(ids)], dtype=torch.int32))
    return logits.tolist()
