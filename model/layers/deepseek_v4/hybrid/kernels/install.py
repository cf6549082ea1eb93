"""The kernels put in the places of their torch twins, once a network is built."""

from __future__ import annotations

from torch import nn

from model.layers.common.norm import WideRMSNorm
from model.layers.deepseek_v4.attention import CoreAttention
from model.layers.deepseek_v4.compressor import Compressor
from model.layers.deepseek_v4.hybrid import kernels
from model.layers.deepseek_v4.hybrid.kernels import hyper, rows
from model.layers.deepseek_v4.hyper import HyperConnection, HyperHead


def _attention(network: nn.Module, ratio: bool, index: bool) -> None:
    for module in network.modules():
        if not isinstance(module, CoreAttention):
            continue
        if (module.shape.ratio > 0, module.shape.index is not None) == (ratio, index):
            for inner in module.modules():
                if isinstance(inner, CoreAttention | Compressor):
                    inner.kernels = kernels


def sliding(network: nn.Module) -> None:
    """Attention over a window alone."""
    _attention(network, False, False)


def csa(network: nn.Module) -> None:
    """Compressed sparse attention."""
    _attention(network, True, True)


def hca(network: nn.Module) -> None:
    """Heavily compressed attention."""
    _attention(network, True, False)


def streams(network: nn.Module) -> None:
    """Hyper-connections and the heads that make one stream of all."""
    for module in network.modules():
        if isinstance(module, HyperConnection | HyperHead):
            module.kernels = hyper


def norms(network: nn.Module) -> None:
    """RMSNorms with fp32 weights."""
    for module in network.modules():
        if isinstance(module, WideRMSNorm):
            module.by = rows.norm_rotate
