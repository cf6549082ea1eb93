"""What Mamba-3 and M²RNN, which Megatron-Core lacks, are as layers that its hybrid stack builds and calls."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.module import GraphableMegatronModule
from torch import Tensor, nn

from model.layers.common.norm import ResidualNorm


def device(config: Any) -> torch.device | None:
    """The device of Megatron's own parameters: None, the host, if they are initialised there, else the current GPU."""
    return None if config.use_cpu_initialization else torch.device("cuda", torch.cuda.current_device())


class MixerLayer(GraphableMegatronModule):
    """x + mixer(norm(x)) over packed documents; ``_mixer`` builds the mixer."""

    def __init__(self, config: Any, layer_number: int = 1, **_: Any) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.norm = ResidualNorm(config, config.hidden_size, config.layernorm_epsilon)
        self.mixer = self._mixer(config)

    def _mixer(self, config: Any) -> nn.Module:
        raise NotImplementedError

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, packed_seq_params: Any = None, **_: Any
    ) -> Tensor:
        """hidden_states [T, 1, h] -> [T, 1, h]."""
        inner, around = self.norm(hidden_states.squeeze(1))  # [T, h]
        mixed: Tensor = around + self.mixer(inner, packed_seq_params.cu_seqlens_q)
        return mixed.unsqueeze(1)
