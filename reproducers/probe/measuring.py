"""Count or time for several reproducers: host waits, operators, launches, milliseconds, capture in a CUDA graph.

Imports torch; the probe's methods of these names import this module when they are called.
"""

from __future__ import annotations

import sys
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

# operators that read a value, or a size that depends on one; lift_fresh ends torch.tensor(number), a blocking copy to
# a GPU
_READING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "equal",
    "repeat_interleave",
    "lift_fresh",
    "unique_dim",
    "bincount",
)
# no operator where the tensor is on the CPU already; asarray and its like call __array__
_FETCHES = ("tolist", "cpu", "numpy", "__array__", "__repr__")
# hand the memory itself to whoever calls them, so that what is read there can no longer be seen
_HANDED = (
    "data_ptr",
    "const_data_ptr",
    "_data_address",
    "__dlpack__",
    "_to_dlpack",
    "_to_dlpack_versioned",
    "__reduce_ex__",
)


class Places(Counter[str]):
    """{"file:line": times}."""

    def __str__(self) -> str:
        return ", ".join(f"{place} x{times}" for place, times in sorted(self.items())) or "none"


def host_waits(call: Callable[[], Any], tree: Path, lane: str) -> Places:
    """The places where ``call`` makes the host wait for a GPU; see ``Probe.waits``."""
    if lane == "cpu":
        return _reads(call, str(tree.absolute()))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    synchronising = [w for w in caught if "synchronizing CUDA operation" in str(w.message)]
    return Places(f"{w.filename.rpartition('/')[2]}:{w.lineno}" for w in synchronising)


def _reads(call: Callable[[], Any], tree: str) -> Places:
    """The places where code under ``tree`` would make the host wait for a GPU, masks as indices included.

    A tensor's memory in the hands of such code counts as read: its address, a capsule of it, its bytes in a pickle.
    """
    places = Places()

    def read(made_from_number: bool = False) -> None:
        """Count a read at the innermost line under the tree."""
        for frame in [f for f in traceback.extract_stack() if f.filename.startswith(tree)][-1:]:
            if not made_from_number or "torch.tensor(" in (frame.line or ""):
                places[f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"] += 1

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = op.name().removeprefix("aten::").partition(".")[0], kwargs or {}
            indices = args[1] if name in ("index", "index_put_", "_index_put_impl_") else ()
            mask = any(i is not None and i.dtype == torch.bool for i in indices)
            if mask or (name in _READING and kwargs.get("output_size") is None):
                read(made_from_number=name == "lift_fresh")
            return op(*args, **kwargs)

    class Called(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = getattr(func, "__name__", ""), kwargs or {}
            to_host = name == "to" and "cpu" in [a for a in (*args, *kwargs.values()) if isinstance(a, str)]
            printed = name == "__format__" and args[0].dim() > 0  # for a scalar an operator reads
            if to_host or printed or name in _FETCHES:
                read()
            return func(*args, **kwargs)

    def handed(frame: types.FrameType, event: str, function: Any) -> None:
        """A profile function, as calls in C ask no mode; libraries that launch kernels may have addresses."""
        called = event in ("call", "c_call")
        by, name = (frame, function.__name__) if event == "c_call" else (frame.f_back, frame.f_code.co_name)
        if called and name in _HANDED and by and by.f_code.co_filename.startswith(tree):
            read()

    before = sys.getprofile()
    sys.setprofile(handed)
    try:
        with Called(), Dispatched():
            call()
    finally:
        sys.setprofile(before)
    return places


class Operators(TorchDispatchMode):
    """``count``: operators that ran; ``written``: elements that they wrote, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.written = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, self.count = op(*args, **(kwargs or {})), self.count + 1
        alias = [r.alias_info for r in op._schema.returns]
        if isinstance(made, torch.Tensor) and not (alias[0] and not alias[0].is_write):  # no view
            self.written += made.numel()
        return made


def gpu_launches(call: Callable[[], Any]) -> tuple[int, int]:
    """Kernels, copies and fills of ``call`` on the GPU, as its own profiler counts them; copies to the host of these.

    (0, 0) where the profiler sees nothing; the first profile of a process starts the profiler, so measure twice.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        call()
        torch.cuda.synchronize()
    names = [event.name for event in trace.events() or () if event.device_type == DeviceType.CUDA]
    return len(names), sum("DtoH" in name for name in names)


def gpu_milliseconds(call: Callable[[], Any], repeats: int, warm: int) -> float:
    """Median milliseconds of ``repeats`` calls after ``warm`` ones, idle time of the GPU included."""
    times = list[float]()
    for _ in range(warm + repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times[warm:])


def cuda_graph(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """(graph, value of ``call`` in it): warm up on a side stream, then capture.

    The first error inside the capture is the one raised; the process is then unfit for more GPU work.
    """
    side, graph, errors = torch.cuda.Stream(), torch.cuda.CUDAGraph(), list[Exception]()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own threads may call CUDA
            try:
                made = call()
            except Exception as error:
                errors.append(error)
                raise
    except Exception as ending:
        raise (errors or [ending])[0] from None
    return graph, made
