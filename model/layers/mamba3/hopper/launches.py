"""The kernels of this room in the places of ``scan``'s and, for the forward pass, of mamba-ssm's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from model.layers.mamba3.hopper.backward import run_backward
from model.layers.mamba3.hopper.fold import run_fold
from model.layers.mamba3.hopper.forward import run_forward
from model.layers.mamba3.hopper.pipelined import run_pipelined
from model.layers.mamba3.hopper.states import run_every_state, run_states
from model.layers.mamba3.scan import Given, Launches, by_blocks


def _states(of: Given) -> tuple[Tensor, ...]:
    """States that a forward pass has kept are those before pairs of blocks, which ``run_pipelined`` cannot read."""
    return run_every_state(of) if of.kept is None else run_states(of)


def _backward(of: Given, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return run_pipelined(of, made) if of.kept is None else run_backward(of, made)


LAUNCHES = Launches(_states, _backward, run_fold, run_forward)


def by_blocks_on_hopper(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``scan.by_blocks`` with these kernels, forwards too."""
    return by_blocks(kernel, LAUNCHES)


def keeping_states(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with states kept from the forward pass."""
    return by_blocks(kernel, LAUNCHES, keeps=True)
