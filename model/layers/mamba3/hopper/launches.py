"""The kernels of this room in the places of mamba-ssm's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.layers.mamba3.hopper.backward import run_backward
from model.layers.mamba3.hopper.fold import run_fold
from model.layers.mamba3.hopper.forward import run_forward
from model.layers.mamba3.hopper.states import run_states
from model.layers.mamba3.scan import Launches, by_blocks

LAUNCHES = Launches(run_forward, run_states, run_backward, run_fold)


def by_blocks_on_hopper(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``scan.by_blocks`` with these kernels."""
    return by_blocks(kernel, LAUNCHES)
