"""mamba-ssm's ``Mamba3`` module: importing it without its compiled extensions, and running it without its kernels."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch
from torch import nn

from model.kinds.recurrent import mamba3 as kind
from model.layers.mamba3.reference import mamba3_mimo_reference, mamba3_siso_reference
from model.patched import seams

KERNEL = "mamba3_mimo_combined"  # Mamba3's global name of its kernels; its value is None without tilelang
SISO = "mamba3_siso_combined"  # and of those for SISO, in Triton
PATCH = "patch -p1 -F0 -d DIR < packs/42_import_without_extensions/fix.patch, DIR the folder that holds mamba_ssm/"
INSTALL = "pip install mamba-ssm==2.3.2.post1 --no-build-isolation (or put its unpacked tree on PYTHONPATH)"


def import_mamba3() -> ModuleType:
    """``mamba_ssm.modules.mamba3``, from wherever ``import mamba_ssm`` finds it.

    Raises ImportError, with the remedy, if mamba-ssm or a dependency is missing: without pack 42 Mamba-1's compiled
    extension is one.
    """
    try:
        return importlib.import_module(importlib.import_module("mamba_ssm").Mamba3.__module__)
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        if missing == "selective_scan_cuda":
            said = "mamba-ssm cannot be imported without Mamba-1's compiled extension"
            raise ImportError(f"{said}\n  fix: {PATCH}") from error
        remedy = INSTALL if missing.startswith("mamba_ssm") else f"pip install {missing}"
        raise ImportError(f"mamba-ssm's Mamba3 needs {missing}, which is not installed\n  fix: {remedy}") from error


@functools.cache
def torch_class(mamba3: type[nn.Module]) -> type[nn.Module]:
    """A subclass of ``mamba3`` that runs its own code with the references in the kernels' place.

    ``mamba3``'s module stays unchanged, so both classes can live in one process.
    """
    kernel: dict[str, Any] = {KERNEL: mamba3_mimo_reference}
    names = {"__init__": kernel, "forward": kernel | {SISO: mamba3_siso_reference}}
    seams.verify(kind.TORCH)
    methods = {method: seams.rebound(getattr(mamba3, method), of) for method, of in names.items()}
    return type(f"{mamba3.__name__}Torch", (mamba3,), {**methods, "__module__": __name__})


def torch_norm(norm: nn.Module) -> nn.Module:
    """torch's RMSNorm with the same weight (the same Parameter) and epsilon as mamba-ssm's Triton kernel."""
    replaced = nn.RMSNorm(norm.weight.shape, eps=norm.eps, device="meta")
    replaced.weight = norm.weight
    return replaced


def kernels_missing(mamba3: ModuleType, device: torch.device) -> str:
    """Why the TileLang kernels cannot run on ``device``, or "" where they can."""
    if device.type != "cuda":
        return f"TileLang's kernels need a CUDA device, this is {device.type}"
    if getattr(mamba3, KERNEL) is None:
        return "mamba-ssm could not import its TileLang kernels (pip install tilelang==0.1.8 apache-tvm-ffi==0.1.9)"
    return ""
