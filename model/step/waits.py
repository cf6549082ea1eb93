"""Count the host's waits for the GPU, by the line of code that waits.

PyTorch's sync debug mode names copies to and from pageable memory, values read and shapes that depend on values. Calls
that wait for an event, a stream or the device are wrapped and counted too. Neither sees waits inside other libraries'
compiled code.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

WARNING = "called a synchronizing CUDA operation"


def _place(file: str, line: int) -> str:
    return f"{'/'.join(Path(file).parts[-3:])}:{line}"


@contextlib.contextmanager
def counted() -> Iterator[collections.Counter[str]]:
    """{place: waits} of the block, filled as it runs; a place is "file:line" with the file's last three parts."""
    counts: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as undo:
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", message=WARNING)
        warnings.showwarning = functools.partial(_shown, counts, warnings.showwarning)
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            undo.callback(setattr, owner, "synchronize", owner.synchronize)
            owner.synchronize = _counting(counts, owner.synchronize)  # type: ignore[method-assign]
        if torch.cuda.is_available():
            undo.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
            torch.cuda.set_sync_debug_mode("warn")
        yield counts


def _shown(
    counts: collections.Counter[str],
    others: Callable[..., None],
    message: Any,
    category: Any,
    file: str,
    line: int,
    *rest: Any,
    **named: Any,
) -> None:
    if WARNING in str(message):
        counts[_place(file, line)] += 1
    else:
        others(message, category, file, line, *rest, **named)


def _counting(counts: collections.Counter[str], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        counts[_place(frame.f_code.co_filename, frame.f_lineno)] += 1
        return function(*args, **kwargs)

    return call


def text(counts: collections.Counter[str]) -> str:
    """The waits in one line, the most frequent place first."""
    return ", ".join(f"{place} x{count}" for place, count in counts.most_common()) or "none"
