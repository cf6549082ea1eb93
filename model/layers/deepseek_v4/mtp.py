"""Multi-token prediction of DeepSeek-V4: a further layer that gets the streams, and sums them by a head of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from model.exported.step import Linear
from model.layers.common.norm import WideRMSNorm
from model.layers.deepseek_v4.hyper import HyperHead


class MtpLayer(nn.Module):  # type: ignore[misc]
    """What predicts the token after the next one, around a layer of the model without compression.

    Embedding and output matrix are the model's. Parameters beside the layer's: 2 d² + 3 d + n² d + n + 1.
    """

    def __init__(self, hidden: int, streams: int, eps: float = 1e-6, hc_eps: float = 1e-6, **base: Any) -> None:
        """``base``: what a base behind this one is built by, where a class has several."""
        super().__init__(**base)
        self.enorm, self.hnorm, self.final_layernorm = (WideRMSNorm(hidden, eps) for _ in range(3))
        self.e_proj, self.h_proj = Linear(hidden, hidden), Linear(hidden, hidden)
        self.hc_head = HyperHead(hidden, streams, hc_eps, eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        for module in (self.enorm, self.hnorm, self.final_layernorm, self.hc_head):
            module.reset_parameters()
        for linear in (self.e_proj, self.h_proj):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, embedded: Tensor, streams: Tensor, layer: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """embedded [s, b, d] of each place's next token, streams [s, b, n, d] before the model's own head.

        ``layer``: streams to streams. Returns the hidden states [s, b, d] that the output matrix takes, and the
        streams [s, b, n, d] for a further depth.
        """
        entered = self.e_proj(self.enorm(embedded)).unsqueeze(-2) + self.h_proj(self.hnorm(streams))
        left = layer(entered)
        hidden: Tensor = self.final_layernorm(self.hc_head(left))
        return hidden, left
