"""Transformer Engine: its Triton cross entropy and what of its Python needs no kernel; stand-ins for its C++."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from reproducers.probe.lanes.transformer_engine import import_transformer_engine
from reproducers.probe.lanes.triton import interpret_triton
from reproducers.studies.hunt.targets.target import Operand, Target

PREPARED = "p.triton_interpreter()\n    p.transformer_engine()"  # what a pack's reproducer calls for the same


def prepare(tree: str) -> None:
    """Before the first import of upstream."""
    interpret_triton()
    import_transformer_engine("cpu")


def cross_entropy(inp: Any, target: Any, label_smoothing: float = 0.0, reduce_loss: bool = False) -> Any:
    """torch's, of each token or, of shape [1], the mean of those that count."""
    rows, labels = inp.flatten(0, 1), target.flatten()
    loss = F.cross_entropy(rows, labels, reduction="none", label_smoothing=label_smoothing)
    return loss.sum().reshape(1) / (labels != -100).sum().clamp(min=1) if reduce_loss else loss.view(target.shape)


TARGETS = (
    Target(
        "parallel_cross_entropy",
        "transformer_engine.pytorch.cross_entropy:parallel_cross_entropy",
        (Operand("inp", "B T V"), Operand("target", "B T", "label V", grad=False)),
        {"B": (1, 2, 3), "T": (1, 2, 3), "V": (2, 3, 17, 70)},
        {"reduce_loss": (False, True), "label_smoothing": (0.0, 0.1)},
        cross_entropy,
        rows="B",
    ),
)
