"""A projection that every rank holds whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from model.layers.linear.wgrad import Linear


class Replicated(Linear):
    """A projection that tensor parallelism does not split; it returns (output, bias) like Megatron's."""

    def __init__(
        self, inputs: int, outputs: int, *, config: Any, init_method: Any, bias: bool = False, **_: Any
    ) -> None:
        super().__init__(inputs, outputs, bias=bias, dtype=config.params_dtype)
        init_method(self.weight)

    def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
        """hidden [..., inputs] -> ([..., outputs], no bias)."""
        return super().forward(hidden), None
