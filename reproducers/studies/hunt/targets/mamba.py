"""mamba-ssm: Triton norms and activations under Triton's interpreter. References: torch, by upstream's docstrings."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from reproducers.probe.lanes.triton import interpret_triton
from reproducers.studies.hunt.targets.target import Operand, Target

PREPARED = """\
from types import SimpleNamespace

    p.namespace()
    p.triton_interpreter()
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=1)
"""  # what a pack's reproducer calls for the same
HIDDEN = (1, 2, 8, 17)
_SIZES = {"B": (1, 2), "T": (1, 2), "H": HIDDEN}


def prepare(tree: str) -> None:
    """Before the first import of upstream, whose ``__init__`` wants compiled extensions."""
    interpret_triton()
    package = types.ModuleType("mamba_ssm")
    package.__path__ = [str(Path(tree, "mamba_ssm"))]
    sys.modules["mamba_ssm"] = package
    processors = types.SimpleNamespace(multi_processor_count=1)  # of a GPU that is not there
    torch.cuda.get_device_properties = lambda *_: processors  # type: ignore[misc,assignment,return-value]


def layer_norm(
    x: Any,
    weight: Any,
    bias: Any = None,
    residual: Any = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    is_rms_norm: bool = False,
    residual_in_fp32: bool = False,
) -> Any:
    """(norm of the sum with the residual, the sum where it is asked for)."""
    total = x if residual is None else x + residual
    if is_rms_norm:
        y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * weight
        y = y if bias is None else y + bias
    else:
        y = F.layer_norm(total, total.shape[-1:], weight, bias, eps)
    return (y, total) if prenorm else y


def call_layer_norm(function: Any, x: Any, weight: Any, bias: Any = None, residual: Any = None, **options: Any) -> Any:
    """Bias and residual stand for themselves where they are absent."""
    return function(x, weight, bias, residual=residual, **options)


def gated_norm(
    x: Any,
    weight: Any,
    bias: Any = None,
    z: Any = None,
    groups: int = 1,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    eps: float = 1e-6,
) -> Any:
    """norm(x) * silu(z), or norm(x * silu(z)), in groups of the last dimension."""
    x = x * F.silu(z) if z is not None and not norm_before_gate else x
    parts = x.unflatten(-1, (groups, -1))
    centred = parts if is_rms_norm else parts - parts.mean(-1, keepdim=True)
    y = (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    y = y if bias is None else y + bias
    return y * F.silu(z) if z is not None and norm_before_gate else y


def call_gated_norm(
    function: Any, x: Any, weight: Any, bias: Any = None, z: Any = None, groups: int = 1, **options: Any
) -> Any:
    """With the size of a group."""
    return function(x, weight, bias, z, group_size=x.shape[-1] // groups, **options)


def swiglu(xy: Any) -> Any:
    """SiLU of the first half times the second."""
    x, y = xy.chunk(2, -1)
    return F.silu(x) * y


def call_swiglu(function: Any, xy: Any) -> Any:
    """It takes positions only."""
    return function(xy)


TARGETS = (
    Target(
        "layer_norm",
        "mamba_ssm.ops.triton.layer_norm:layer_norm_fn",
        (
            Operand("x", "B T H"),
            Operand("weight", "H", "scale"),
            Operand("bias", "H", absent=True),
            Operand("residual", "B T H", absent=True),
        ),
        _SIZES,
        {"prenorm": (False, True), "is_rms_norm": (False, True), "residual_in_fp32": (False, True)},
        layer_norm,
        call_layer_norm,
        rows="B",
    ),
    Target(
        "gated_norm",
        "mamba_ssm.ops.triton.layernorm_gated:layernorm_fn",
        (
            Operand("x", "B T 4*H"),
            Operand("weight", "4*H", "scale"),
            Operand("bias", "4*H", absent=True),
            Operand("z", "B T 4*H", absent=True),
        ),
        {"B": (1, 2), "T": (1, 2), "H": (1, 2, 5)},
        {"groups": (1, 2), "norm_before_gate": (True, False), "is_rms_norm": (False, True)},
        gated_norm,
        call_gated_norm,
        rows="B",
    ),
    Target(
        "swiglu",
        "mamba_ssm.ops.triton.k_activations:swiglu",
        (Operand("xy", "B T 2*H"),),
        _SIZES,
        {},
        swiglu,
        call_swiglu,
        rows="B",
    ),
)
