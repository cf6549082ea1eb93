"""M²RNN as a layer of Megatron's hybrid stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core.transformer.spec_utils import ModuleSpec
from torch import nn

from model.kinds.path import Choice
from model.layers.captured.graphed import Graphed
from model.layers.common import mixer
from model.layers.m2rnn.mixer import M2RNN


class M2rnnLayer(Graphed, mixer.MixerLayer):
    """M²RNN (``model.layers.m2rnn.mixer``)."""

    def _mixer(self, config: Any) -> nn.Module:
        r, path = config.model_size.m2rnn, config.model_paths["m2rnn"].name
        return M2RNN(config.hidden_size, r.heads, r.k_dim, r.v_dim, r.conv, path).to(mixer.device(config))


def layer(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """The layer's spec; arguments as every kind's."""
    return ModuleSpec(module=M2rnnLayer)
