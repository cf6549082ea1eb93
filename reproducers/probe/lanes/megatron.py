"""Boot Megatron-Core in one process: a world of one on any host, and the few CUDA names it needs where there is no GPU.

Nothing of Megatron's own code is replaced except its two accessors of the CUDA generator's state, which have no
meaning on a CPU; every other change is to ``torch.cuda`` or to ``device="cuda"`` arguments.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from reproducers.probe.checks import CannotTest
from reproducers.probe.ranks import Rank

_FACTORIES = ("arange", "as_tensor", "empty", "empty_like", "full", "ones", "rand", "randn", "tensor", "zeros")


def megatron_lane(device: str) -> None:
    """``device`` "cpu": stand in for the CUDA names Megatron asks for, GPU or not; call before it is imported."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # works until torch is first asked for a GPU
    import torch

    if importlib.util.find_spec("triton") is None:  # megatron.core 0.18 and later always import it
        raise CannotTest("triton is not installed", "pip install triton")
    if torch.cuda.is_available() != (device == "cuda"):
        seen, remedy = ("no GPU", "") if device == "cuda" else ("GPUs", "export CUDA_VISIBLE_DEVICES=")
        raise CannotTest(f"lane {device} was asked for, torch sees {seen}", remedy)
    _fast_hadamard_transform()
    if device == "cpu":
        _stand_in(torch.cuda, torch.Tensor)


def _stand_in(cuda: Any, tensor: Any) -> None:
    """Give ``torch.cuda`` and tensors the names that Megatron asks for, on the CPU; once a process."""
    import torch

    if hasattr(torch.ones, "__wrapped__"):
        return  # done
    cuda.current_device = lambda: torch.device("cpu")
    cuda.get_rng_state = lambda *a, **k: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda.synchronize = lambda *a, **k: None
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *a, **k: 0
    cuda.nvtx.range = lambda *a, **k: contextlib.nullcontext()
    cuda.current_stream = lambda *a, **k: types.SimpleNamespace(wait_stream=lambda other: None)  # all is in order
    cuda.stream = lambda *a, **k: contextlib.nullcontext()
    tensor.cuda = tensor.pin_memory = lambda self, *a, **k: self
    kind = tensor.type  # the optimizers recognise dtypes by names such as torch.cuda.FloatTensor
    tensor.type = lambda self, *a, **k: kind(self, *a, **k) if a or k else kind(self).replace("torch.", "torch.cuda.")
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _fast_hadamard_transform() -> None:
    """``fast_hadamard_transform`` as torch operations, computed in fp32, where that CUDA extension is not installed.

    DSA's indexer imports it by name; it comes as sources only.
    """
    name = "fast_hadamard_transform"
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return
    import torch

    def hadamard_transform(x: Any, scale: float = 1.0) -> Any:
        y, half = x.float(), 1  # [..., n], n a power of two
        while half < x.shape[-1]:
            a, b = y.unflatten(-1, (-1, 2, half)).unbind(-2)  # [..., n / (2 half), half] each
            y, half = torch.stack((a + b, a - b), dim=-2).flatten(-3), 2 * half
        return (y * scale).to(x.dtype)

    module: Any = types.ModuleType(name)
    module.hadamard_transform = hadamard_transform
    sys.modules[name] = module


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """``factory`` with ``device="cuda"`` read as the CPU and without pinned memory."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return make


def start_megatron(upstream: Callable[[str], Any], seed: int, rank: Rank, **parallel: int) -> None:
    """Start torch.distributed and Megatron's groups and generators in this rank.

    ``parallel`` goes to ``initialize_model_parallel``. Tensors on a GPU are sent by NCCL, one GPU a rank, in a world
    of one too: gloo ends with a segmentation fault where it coalesces them. Call once per process.
    """
    import torch

    random = upstream("megatron.core.tensor_parallel.random")
    _process_group(rank)
    upstream("megatron.core.parallel_state").initialize_model_parallel(**parallel)
    if not torch.cuda.is_available():
        random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
        random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    torch.manual_seed(seed)
    random.model_parallel_cuda_manual_seed(seed + 1234)


def _process_group(rank: Rank) -> None:
    """Join the other ranks, or a world of one; gloo uses loopback if this host names it ``lo``."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if "lo" in dict(socket.if_nameindex()).values():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend, store = "gloo", dist.HashStore() if rank.rendezvous is None else dist.FileStore(str(rank.rendezvous))
    if torch.cuda.is_available():
        if torch.cuda.device_count() < rank.world:
            raise CannotTest(f"{rank.world} ranks need as many GPUs, found {torch.cuda.device_count()}")
        torch.cuda.set_device(rank.number)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=store, rank=rank.number, world_size=rank.world)
