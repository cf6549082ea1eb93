"""transformers' DeepSeek-V4 of a size, and what its modules give. It is right on single unpadded documents in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.alignment.watched import Seen, watching
from model.families import deepseek_v4_config
from model.families.deepseek_v4 import Size
from patchlane.base.errors import CannotTestHere
from patchlane.base.optional import load

VERSION = "5.24.0"
NAME = f"transformers {VERSION}"
# of what a size's config.json says, widths and counts
WIDTHS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "qk_rope_head_dim"),
    *("q_lora_rank", "o_groups", "o_lora_rank", "sliding_window", "layer_types", "compress_rates"),
    *("index_n_heads", "index_head_dim", "index_topk"),
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor", "mlp_layer_types"),
    *("hc_mult", "hc_sinkhorn_iters"),
)
# of DeepSeek's published configurations; the two bases are the library's own defaults
YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 65_536,
    "beta_fast": 32,
    "beta_slow": 1,
}


def require() -> Any:
    """The library. Raises CannotTestHere, with the pip command, where it is not there in the version that was read."""
    wanted = f"transformers=={VERSION}"
    found = load("transformers", wanted)
    if found.__version__ != VERSION:
        raise CannotTestHere(f"{wanted} is what was read, {found.__version__} is installed", f"pip install {wanted}")
    return found


def config(size: Size, constants: Mapping[str, float], yarn: Mapping[str, Any] = YARN) -> Any:
    """Its configuration: of ``size`` widths and counts alone, so that a constant of ours that is wrong is not theirs
    too. ``constants``: fields in place of the library's own."""
    said = deepseek_v4_config.written(size, "float32", None)
    return require().DeepseekV4Config(
        **{field: said[field] for field in WIDTHS},
        rope_parameters={**yarn},
        max_position_embeddings=yarn["original_max_position_embeddings"],
        pad_token_id=None,
        **constants,
    )


def model(of: Any) -> Any:
    """The model of a configuration, fp32, as it trains."""
    made = require().DeepseekV4ForCausalLM(of).train()
    made.set_experts_implementation("eager")  # torch's grouped product wants widths in multiples of 16 bytes
    return made


def tensors(made: Any) -> dict[str, Tensor]:
    """{name: parameter, or buffer that its checkpoint has}."""
    return dict(made.state_dict(keep_vars=True))


@torch.no_grad()
def fill(made: Any, given: Mapping[str, Tensor]) -> None:
    """Give it the weights of these names, all that it has. Raises ValueError for others, or in another shape."""
    held = tensors(made)
    if held.keys() - given.keys():
        raise ValueError(f"without values: {sorted(held.keys() - given.keys())}")
    for name, tensor in held.items():
        if tensor.shape != given[name].shape:
            raise ValueError(f"{name} is {[*tensor.shape]}, not {[*given[name].shape]}")
        tensor.copy_(given[name])


@dataclass(frozen=True)
class Said:
    """A model after a pass forward and back: its weights, what its modules gave (``watched``), its logits and loss, and
    {name: gradient of the loss, None where there is none} of its parameters."""

    model: Any
    held: Mapping[str, Tensor]
    seen: Seen
    output: Any
    gradients: Mapping[str, Tensor | None]


def said(of: Any, given: Mapping[str, Tensor], ids: Tensor) -> Said:
    """What the model of a configuration with weights ``given`` says of documents [B, S]."""
    made = model(of)
    fill(made, given)
    with watched(made) as seen:
        output = made(ids, labels=ids, use_cache=False)
    output.loss.backward()
    held = tensors(made)
    gradients = {name: tensor.grad for name, tensor in held.items() if tensor.requires_grad}
    return Said(made, {name: tensor.detach() for name, tensor in held.items()}, seen, output, gradients)


@contextmanager
def watched(made: Any) -> Iterator[Seen]:
    """{"layer.part": what the modules of published layer ``layer`` get and give in the next pass}, documents [B, S]
    first."""
    with watching() as watch:
        for i, layer in enumerate(made.model.layers):
            attention = layer.self_attn
            for place in ("attn_hc", "ffn_hc"):
                watch.after(getattr(layer, place), f"{i}.{place}", lambda given, output: (given[0], *output))
            for place in ("input_layernorm", "post_attention_layernorm"):
                watch.after(getattr(layer, place), f"{i}.{place}")
            for place in ("q_a_norm", "kv_norm"):
                watch.after(getattr(attention, place), f"{i}.{place}")
            watch.after(attention.o_b_proj, f"{i}.core", lambda given, _: given[0])
            watch.after(attention, f"{i}.attention", lambda _, output: output[0])
            if attention.compressor is not None:
                watch.after(attention.compressor, f"{i}.compressor")
            if indexer := getattr(attention.compressor, "indexer", None):
                watch.after(indexer.scorer, f"{i}.scorer", lambda given, output: (given[0], given[1], output))
            watch.after(layer.mlp.gate, f"{i}.gate")
            watch.after(layer.mlp.shared_experts, f"{i}.shared")
            watch.after(layer.mlp, f"{i}.moe")
        watch.after(made.model.hc_head, "hc_head", lambda given, output: (given[0], output))
        watch.after(made.model.norm, "norm")
        yield watch.seen


def masks(biases: Tensor) -> Tensor:
    """Which compressed entries each token sees, [B S, B T] bool, of a compressor's biases [B, 1, S, T]: those of its
    own document."""
    return torch.block_diag(*(biases[:, 0] == 0).float()).bool()
