"""The state of a process beside its arguments: what a call may not leave changed."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

SWITCHES = [(torch.backends.cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")] + [
    (torch.backends.cuda.matmul, name)
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _numpy() -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    return _digest([part.tobytes() if hasattr(part, "tobytes") else part for part in numpy.random.get_state()])


def _cuda(ask: Callable[[], Any]) -> Any:
    return ask() if torch.cuda.is_available() and torch.cuda.is_initialized() else None


def _threads() -> int | None:
    """How many there are; beside other threads that a check has started, whose ends are no call's, nobody can say."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return len([one for one in threading.enumerate() if not isinstance(one, threading._DummyThread)])


def _flags() -> dict[str, Any]:
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "precision of products": (torch.get_float32_matmul_precision(), cuda.allow_tf32, cudnn.allow_tf32),
        "reductions of products": (
            cuda.allow_fp16_reduced_precision_reduction,
            cuda.allow_bf16_reduced_precision_reduction,
        ),
        "cuDNN's flags": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "threads of torch": torch.get_num_threads(),
        "print options of torch": _digest(vars(torch._tensor_str.PRINT_OPTS)),
    }


def _python() -> dict[str, Any]:
    return {
        "environment": _digest(sorted(os.environ.items())),
        "working directory": str(Path.cwd()),
        "import path": tuple(sys.path),
        "warning filters": _digest(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion limit": sys.getrecursionlimit(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "signal handlers": [signal.getsignal(number) for number in SIGNALS],
        "threads": _threads(),
        "loggers' levels": _levels(),
        "standard streams": (id(sys.stdout), id(sys.stderr), sys.excepthook),
    }


class Listener(logging.Handler):
    """A handler of the census's own, which no state has."""


def _levels() -> tuple[Any, ...]:
    """Of the root and of torch: what upstream does to its own loggers is its own."""
    rows = list[tuple[Any, ...]]()
    for one in (logging.getLogger(name) for name in ("", "torch")):
        rows.append((one.level, one.disabled, sum(not isinstance(row, Listener) for row in one.handlers)))
    return (*rows, logging.root.manager.disable)


def state() -> dict[str, Any]:
    """{name: what can be compared}."""
    return {
        "torch's random state": _digest(torch.get_rng_state().numpy().tobytes()),
        "Python's random state": _digest(random.getstate()),
        "numpy's random state": _numpy(),
        "CUDA's random state": _cuda(lambda: _digest(torch.cuda.get_rng_state().numpy().tobytes())),
        "CUDA device": _cuda(torch.cuda.current_device),
        "CUDA stream": _cuda(lambda: torch.cuda.current_stream().cuda_stream),
        **_flags(),
        **_python(),
    }


@contextlib.contextmanager
def stirred() -> Iterator[None]:
    """Switches that a call has no reason to touch are otherwise than they were, and at the end as they were."""
    precision, threads, limit = torch.get_float32_matmul_precision(), torch.get_num_threads(), sys.getrecursionlimit()
    strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    collects, quiet, shown = gc.isenabled(), logging.root.manager.disable, dict(vars(torch._tensor_str.PRINT_OPTS))
    with contextlib.ExitStack() as left, warnings.catch_warnings():
        left.callback(torch.set_float32_matmul_precision, precision)
        left.callback(torch.set_num_threads, threads)
        left.callback(sys.setrecursionlimit, limit)
        left.callback(torch.use_deterministic_algorithms, strict[0], warn_only=strict[1])
        left.callback(gc.enable if collects else gc.disable)
        left.callback(logging.disable, quiet)
        left.callback(vars(torch._tensor_str.PRINT_OPTS).update, shown)
        for holder, name in SWITCHES:
            left.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, not getattr(holder, name))
        torch.set_float32_matmul_precision("high" if precision == "highest" else "highest")
        torch.set_num_threads(threads + 1)
        sys.setrecursionlimit(limit + 7)
        torch.use_deterministic_algorithms(not strict[0], warn_only=True)
        (gc.disable if collects else gc.enable)()
        logging.disable(quiet + 1)
        torch.set_printoptions(precision=shown["precision"] + 1)
        warnings.simplefilter("default", category=ImportWarning)
        yield


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is otherwise; not what could not be told before: the first to use a GPU gives its process a stream."""
    return [name for name in before if before[name] is not None and before[name] != after[name]]
