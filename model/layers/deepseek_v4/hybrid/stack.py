"""The stack of layers, and what travels beside its streams."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from megatron.core.models.hybrid.hybrid_block import HybridStack
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from model.layers.common.norm import WideRMSNorm
from model.layers.deepseek_v4.hyper import HyperHead


@dataclass
class Carried(PackedSeqParams):
    """Megatron's record of packed documents, which every layer takes also where it is computed again, and with it the
    token ids ``tokens`` [T, 1], of every stage, and the ``streams`` [T, 1, n, d] behind the last layer, for MTP."""

    tokens: Tensor | None = None
    streams: Tensor | None = None


def carried(packed: PackedSeqParams, tokens: Tensor) -> Carried:
    """A new record of the same documents, whose token ids are ``tokens`` [1, T]."""
    held = {field.name: getattr(packed, field.name) for field in dataclasses.fields(PackedSeqParams)}
    return Carried(**held, tokens=tokens.t())


class StreamStack(HybridStack):
    """Megatron's hybrid stack, streams [T, 1, n d] to streams; on the last stage to one hidden state [T, 1, d] behind
    ``hc_head`` and the last norm, and the streams are left on the ``Carried`` record."""

    def __init__(self, config: Any, *given: Any, post_process: bool = True, **rest: Any) -> None:
        super().__init__(config, *given, post_layer_norm=False, post_process=post_process, **rest)
        size = config.model_size
        self.ends = post_process
        if self.ends:
            self.hc_head = HyperHead(size.hidden, size.hyper.streams, size.hyper.eps, size.rms_norm_eps)
            self.final_norm = WideRMSNorm(size.hidden, size.rms_norm_eps)

    def forward(self, *given: Any, packed_seq_params: Carried, **rest: Any) -> Tensor:
        """As Megatron's."""
        wire: Tensor = super().forward(*given, packed_seq_params=packed_seq_params, **rest)
        if not self.ends:
            return wire
        packed_seq_params.streams = wire.unflatten(-1, (self.config.model_size.hyper.streams, -1))
        hidden: Tensor = self.final_norm(self.hc_head(packed_seq_params.streams))
        return hidden
