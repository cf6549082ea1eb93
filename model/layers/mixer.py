"""Mamba-3 and M²RNN, which Megatron-Core lacks, as layers that its hybrid stack builds and calls."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.module import GraphableMegatronModule
from torch import Tensor, nn

from model.layers.captured.graphed import Graphed
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


class Mamba3Layer(Graphed, MixerLayer):
    """Mamba-3 MIMO: mamba-ssm's module (``model.layers.mamba3.mixer``)."""

    def _mixer(self, config: Any) -> nn.Module:
        from model.layers.mamba3 import mixer

        m = config.nam56r_size.mamba
        return mixer.build_mamba3(
            config.hidden_size,
            d_state=m.state,
            expand=m.expand,
            headdim=m.head_dim,
            ngroups=m.groups,
            rank=m.rank,
            chunk=m.chunk,
            rope_fraction=m.rope_fraction,
            dt_min=m.dt_min,
            dt_max=m.dt_max,
            A_floor=m.A_floor,
            dtype=config.params_dtype,
            device=device(config),
            path=config.nam56r_paths["mamba3"].name,
            row=config.nam56r_row,
            norm=config.nam56r_paths["bc_norm"].name,
        )


class M2rnnLayer(Graphed, MixerLayer):
    """M²RNN (``model.layers.m2rnn.mixer``)."""

    def _mixer(self, config: Any) -> nn.Module:
        from model.layers.m2rnn import mixer as m2rnn

        r = config.nam56r_size.m2rnn
        path = config.nam56r_paths["m2rnn"].name
        return m2rnn.M2RNN(config.hidden_size, r.heads, r.k_dim, r.v_dim, r.conv, path).to(device(config))
