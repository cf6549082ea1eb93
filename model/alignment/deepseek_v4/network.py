"""What the modules of DeepSeek-V4's network give, by the names of ``public.watched``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from model.alignment.watched import Seen, watching
from model.layers.deepseek_v4 import indexer
from model.step.deepseek_v4 import DeepseekV4


@contextmanager
def watched(built: DeepseekV4) -> Iterator[Seen]:
    """{"layer.part": what the modules of published layer ``layer`` get and give in the next pass}, by the names of
    ``public.watched`` where there is the same cut; "mtp" beside them."""
    with watching() as watch:

        def pair(attention: Any, experts: Any, name: str) -> None:
            for place, module in (
                ("attn_hc", attention.self_attention_hyper_connection),
                ("ffn_hc", experts.mlp_hyper_connection),
            ):
                watch.after(module, f"{name}.{place}", lambda given, out: (given[0], out[1].post, out[1].comb, out[0]))
            watch.after(attention.input_layernorm, f"{name}.input_layernorm")
            watch.after(experts.pre_mlp_layernorm, f"{name}.post_attention_layernorm")
            inner, core = attention.self_attention, attention.self_attention.core_attention
            watch.after(inner.q_layernorm, f"{name}.q_a_norm")
            watch.after(inner.kv_layernorm, f"{name}.kv_norm")
            watch.after(inner.linear_proj, f"{name}.core", lambda given, _: given[0])
            watch.after(inner, f"{name}.attended")
            if core.compressor is not None:
                watch.after(core.compressor, f"{name}.compressor")
                visible = _Visible(core, f"{name}.visible", watch.seen)
                watch.ends.callback(visible.remove)
            if core.indexer is not None:
                watch.after(core.indexer, f"{name}.scorer", lambda _, out: (out.query, out.keys, indexer.scores(*out)))
            watch.after(experts.mlp.router, f"{name}.gate")
            watch.after(experts.mlp.shared_experts, f"{name}.shared")
            watch.after(experts.mlp, f"{name}.moe", lambda _, output: output[0])

        layers = built.decoder.layers
        for i in range(len(layers) // 2):
            pair(layers[2 * i], layers[2 * i + 1], str(i))
        watch.after(built.decoder.hc_head, "hc_head", lambda given, output: (given[0], output))
        watch.after(built.decoder.final_norm, "norm")
        depth = built.mtp.layers[0]
        pair(depth.mtp_model_layer.layers[0], depth.mtp_model_layer.layers[1], "mtp")
        watch.after(depth, "mtp", lambda _, output: output)
        yield watch.seen


class _Visible:
    """Keeps which entries each token sees, [T, E] bool, of the next call of a module's ``visible``."""

    def __init__(self, core: Any, name: str, seen: Seen) -> None:
        self.core, inner = core, core.visible

        def visible(x: Tensor, *given: Any) -> Any:
            found, projected = inner(x, *given)
            slots = len(x) // core.shape.ratio
            mask = found.mask(slots)
            if found.chosen is not None:
                at = torch.where(mask, found.chosen, slots)
                mask = torch.zeros(len(x), slots + 1, dtype=torch.bool).scatter(1, at, True)[:, :slots]
            seen.setdefault(name, mask)
            return found, projected

        core.visible = visible

    def remove(self) -> None:
        del self.core.visible
