"""Modes of torch under which the census makes calls: what they make, hold and send, and what may come between."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KNOWN = 40  # tensors of which it is asked who holds them
EMPTY = {getattr(torch.ops.aten, f"{prefix}empty{more}") for prefix in ("", "new_") for more in ("", "_strided")} | {
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_permuted,
}
GROUPED = ("c10d", "_c10d_functional", "c10d_functional")


def gpu_works() -> bool:
    """Whether all that the GPU was asked for is done; a kernel's fault comes late, and leaves a process no GPU."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:  # torch.AcceleratorError is one
        return False
    return True


class Filled(TorchDispatchMode):  # type: ignore[misc]
    """Memory that nobody writes holds ones: where kernels have stand-ins, their results are alike each time."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if op._overloadpacket in EMPTY:
            made.fill_(1)
        return made


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Cycles are collected before and not within, so that what lives at once does not hang on when they are."""
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Cost(TorchDispatchMode):  # type: ignore[misc]
    """Of the tensors that are made, views left out: ``elements`` of the largest, ``peak`` of all that live at once."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.peak = self._now = 0
        self._known = set[int]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        for one, told in zip(made if isinstance(made, tuple | list) else (made,), op._schema.returns, strict=False):
            if isinstance(one, Tensor) and not told.alias_info and id(one) not in self._known:
                self._known.add(id(one))
                self._now += one.numel()
                weakref.finalize(one, self._gone, id(one), one.numel())
                self.elements = max(self.elements, one.numel())
                self.peak = max(self.peak, self._now)
        return made

    def _gone(self, name: int, elements: int) -> None:
        self._known.discard(name)
        self._now -= elements


class Made(TorchDispatchMode):  # type: ignore[misc]
    """Knows every tensor that operators made while it was on, as long as Python holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.made = list[weakref.ref[Tensor]]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        several = made if isinstance(made, tuple | list) else (made,)
        self.made += [weakref.ref(one) for one in several if isinstance(one, Tensor)]
        return made

    def alive(self, but: Sequence[Tensor]) -> list[int]:
        """Elements of each that is held; none of these, and none of which one of these is a view. The largest first."""
        seen = {id(one) for one in but} | {id(one._base) for one in but if one._base is not None}
        known = {id(one()): one for one in self.made if one() is not None and id(one()) not in seen}
        if known:
            gc.collect()  # a cycle holds them for a while
        sizes = [(tensor.numel(), one) for one in known.values() if (tensor := one()) is not None]
        found = list[int]()
        for elements, one in sorted(sizes, key=lambda row: -row[0])[:KNOWN]:
            tensor = one()
            if tensor is not None and _held(tensor):
                found.append(elements)
        return found


def _held(tensor: Tensor) -> bool:
    """Whether a thing of Python's holds the tensor; autograd's own nodes are none."""
    return any(not isinstance(one, types.FrameType) for one in gc.get_referrers(tensor))


class Collectives(TorchDispatchMode):  # type: ignore[misc]
    """``called``: operations of a process group, which every rank of the group has to call."""

    def __init__(self) -> None:
        super().__init__()
        self.called = set[str]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace in GROUPED:
            self.called.add(op._opname.rstrip("_"))
        return op(*args, **(kwargs or {}))


class Alone(TorchDispatchMode):  # type: ignore[misc]
    """An operation for which other ranks would have to be there raises RuntimeError, as they are not."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace in GROUPED:
            raise RuntimeError(f"{op} in one rank alone")
        return op(*args, **(kwargs or {}))


NO_MEMORY = torch.OutOfMemoryError.__name__


def no_memory() -> None:
    """Raise what an operator raises that finds no memory on a GPU."""
    raise torch.OutOfMemoryError("no memory, so that it is seen who is told")


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """``count`` of the operators; after those in ``at`` (1 for the first) ``between`` is called."""

    def __init__(self, at: Sequence[int] = (), between: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.count, self.at, self.between = 0, set(at), between

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        self.count += 1
        if self.count in self.at:
            self.between()
        return made
