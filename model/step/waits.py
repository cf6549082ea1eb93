"""Where the host waits for the GPU: counted, by the line of code that did.

PyTorch's sync debug mode names copies to and from pageable memory, values read and shapes that depend on values. What
waits for an event, a stream or the device is asked for by name and counted beside it. Waits inside other libraries'
compiled code are seen by neither.
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

SAID = "called a synchronizing CUDA operation"


def _place(file: str, line: int) -> str:
    return f"{'/'.join(Path(file).parts[-3:])}:{line}"


@contextlib.contextmanager
def counted() -> Iterator[collections.Counter[str]]:
    """{place: waits} of what runs inside, filled as it does; "file:line" with the file's last three parts."""
    found: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as undo:
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("always", message=SAID)
        warnings.showwarning = functools.partial(_shown, found, warnings.showwarning)
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            undo.callback(setattr, owner, "synchronize", owner.synchronize)
            owner.synchronize = _counting(found, owner.synchronize)  # type: ignore[method-assign]
        if torch.cuda.is_available():
            undo.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
            torch.cuda.set_sync_debug_mode("warn")
        yield found


def _shown(
    found: collections.Counter[str], others: Callable[..., None], message: Any, category: Any, file: str, line: int,
    *rest: Any, **named: Any,
) -> None:  # fmt: skip
    if SAID in str(message):
        found[_place(file, line)] += 1
    else:
        others(message, category, file, line, *rest, **named)


def _counting(found: collections.Counter[str], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        found[_place(frame.f_code.co_filename, frame.f_lineno)] += 1
        return function(*args, **kwargs)

    return call


def text(found: collections.Counter[str]) -> str:
    """In one line, the most frequent first."""
    return ", ".join(f"{place} x{count}" for place, count in found.most_common()) or "none"
