"""Liger-Kernel: losses and layers, their Triton kernels under Triton's interpreter."""

from __future__ import annotations

from reproducers.probe.lanes.triton import interpret_triton
from reproducers.studies.hunt.targets import liger_layers, liger_losses

PREPARED = "p.triton_interpreter()"  # what a pack's reproducer calls for the same
TARGETS = (*liger_losses.TARGETS, *liger_layers.TARGETS)


def prepare(tree: str) -> None:
    """Before the first import of upstream."""
    interpret_triton()
