"""Specs of DeepSeek-V4's layers, of its stack and of MTP, for Megatron's HybridModel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec

from model.kinds.path import Choice, called
from model.layers.deepseek_v4.hybrid.layers import AttentionLayer, ExpertsLayer
from model.layers.deepseek_v4.hybrid.mtp import Depth, StreamMtp
from model.layers.deepseek_v4.hybrid.stack import StreamStack
from model.patched import dialect


def sliding(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """The spec of attention over a window; arguments as every kind's."""
    return ModuleSpec(module=AttentionLayer, params={"kind": size.kinds["sliding"]})


def csa(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """Of compressed sparse attention."""
    return ModuleSpec(module=AttentionLayer, params={"kind": size.kinds["csa"]})


def hca(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """Of heavily compressed attention."""
    return ModuleSpec(module=AttentionLayer, params={"kind": size.kinds["hca"]})


def topk_moe(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """Of a mixture of experts by the best scores. Of its paths "grouped_mm" is torch's grouped product, which takes the
    experts' counts from the device; "torch" runs experts one after the other."""
    return _experts(False, chosen["topk_moe"])


def hash_moe(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """Of a mixture of experts by token ids; paths as ``topk_moe``'s."""
    return _experts(True, chosen["hash_moe"])


def _experts(hashed: bool, path: Choice) -> ModuleSpec:
    return ModuleSpec(module=ExpertsLayer, params={"hashed": hashed, "grouped": path.name == "grouped_mm"})


def stack(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """Spec of the main stack and its MTP depths; ``chosen``: every kind's path."""
    depths = MultiTokenPredictionBlockSubmodules(layer_specs=[ModuleSpec(module=Depth)])
    parts = dialect.hybrid_submodules(
        **{kind.slot: called(kind.spec)(size, chosen, on_cpu) for kind in size.kinds.values()},
        mtp_block_spec=ModuleSpec(module=MultiTokenPredictionBlock, submodules=depths),
    )
    return ModuleSpec(module=StreamStack, submodules=parts)


def streamed(network: Any) -> None:
    """MTP of ``network``'s last stage takes streams: Megatron's model builds the block of its own class alone."""
    if network.mtp_process:
        network.mtp.__class__ = StreamMtp
