"""Multi-token prediction over the streams, in the place of Megatron's."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.hybrid.hybrid_block import HybridStack
from megatron.core.models.hybrid.hybrid_layer_allocation import validate_segment_layers
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock, roll_tensor
from torch import Tensor

from model.layers.common import mixer
from model.layers.deepseek_v4.hybrid.stack import Carried
from model.layers.deepseek_v4.mtp import MtpLayer


class Depth(MtpLayer, MegatronModule):
    """One depth, built as Megatron builds its own: layers of the pattern ``mtp_layer_pattern`` within ``MtpLayer``."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        pg_collection: Any,
        mtp_layer_pattern: str,
        hybrid_submodules: Any,
        **_: Any,
    ) -> None:
        size = config.model_size
        super().__init__(size.hidden, size.hyper.streams, size.rms_norm_eps, size.hyper.eps, config=config)
        self.to(mixer.device(config))
        self.layer_number = layer_number
        self.mtp_model_layer = HybridStack(
            config=config,
            submodules=hybrid_submodules,
            layer_type_list=validate_segment_layers(mtp_layer_pattern),
            pre_process=True,
            post_layer_norm=False,
            post_process=True,
            pg_collection=pg_collection,
            is_mtp_layer=True,
        )

    def predicted(self, embedded: Tensor, streams: Tensor, carried: Carried) -> tuple[Tensor, Tensor]:
        """embedded [T, 1, d], streams [T, 1, n, d] -> hidden states [T, 1, d] and the streams of a further depth."""

        def layer(entered: Tensor) -> Tensor:
            wire = self.mtp_model_layer(entered.flatten(-2), None, packed_seq_params=carried)
            left: Tensor = wire.unflatten(-1, entered.shape[-2:])
            return left

        found: tuple[Tensor, Tensor] = self(embedded, streams, layer)
        return found


class StreamMtp(MultiTokenPredictionBlock):
    """All depths. What follows a document's last token has no embedding: zeros take its place."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, hidden_states: Tensor, packed_seq_params: Carried, embedding: Any, **rest: Any
    ) -> Tensor:
        """Token ids [1, T], the model's hidden states [T, 1, d] -> them and each depth's, [(1 + depths) T, 1, d]."""
        hidden, streams, there = [hidden_states], packed_seq_params.streams, torch.ones_like(input_ids)
        for depth in self.layers:
            input_ids, there = (
                roll_tensor(x, cp_group=self.cp_group, packed_seq_params=packed_seq_params)[0]
                for x in (input_ids, there)
            )
            embedded = embedding(input_ids=input_ids, position_ids=None) * there.t().unsqueeze(-1)
            found, streams = depth.predicted(embedded, streams, packed_seq_params)
            hidden.append(found)
        return torch.cat(hidden)
