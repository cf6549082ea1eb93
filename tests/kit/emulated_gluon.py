"""torch in the place of Gluon: kernels of ``model.layers.mamba3.hopper`` run on a CPU, one program after the other.

Values and places in memory are as on a GPU, and so are barriers in shared memory: warps with work of their own are
threads. Layouts are not, nor what a fence or a barrier of all threads orders.
"""

import importlib
import itertools
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
import triton.experimental
from torch import Tensor

PROGRAM, PROGRAMS = [torch.tensor(0)] * 3, [torch.tensor(1)] * 3
WAITING = 60  # seconds
AT_ONCE = [3]  # programs that share all rows


class Pointer:
    def __init__(self, to: Tensor, at: Any = 0) -> None:
        self.to, self.at, self.dtype = to, at, SimpleNamespace(element_ty=to.dtype)

    def __add__(self, more: Any) -> "Pointer":
        return Pointer(self.to, self.at + more)

    def __sub__(self, less: Any) -> "Pointer":
        return Pointer(self.to, self.at - less)


class Shared:
    """Shared memory. What is seen as two halves, one after the other, has the halves of each row."""

    layout = None

    def __init__(self, numbers: Tensor) -> None:
        self.numbers, self.dtype, self.shape = numbers, numbers.dtype, numbers.shape

    def load(self, _: Any) -> Tensor:
        return self.numbers.clone()

    def store(self, value: Tensor) -> None:
        assert (value.shape, value.dtype) == (self.numbers.shape, self.numbers.dtype)
        self.numbers.copy_(value)

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.numbers.permute(*order))

    def index(self, number: int) -> "Shared":
        return Shared(self.numbers[number])

    def _reinterpret(self, _: Any, shape: list[int], __: Any) -> "Shared":
        if shape[-1] == self.shape[-1]:
            return Shared(self.numbers.view(shape))
        return Shared(self.numbers.unflatten(1, (2, shape[2])).transpose(0, 1))


class Barrier:
    """Of a mbarrier's phases the one that runs; it ends when all have arrived and all bytes are there."""

    def __init__(self) -> None:
        self.phase = self.count = self.missing = self.bytes = 0
        self.changed = threading.Condition()

    def init(self, count: int) -> None:
        self.count = self.missing = count

    def take(self, arrived: int, bytes: int) -> None:
        with self.changed:
            self.missing, self.bytes = self.missing - arrived, self.bytes + bytes
            assert self.missing >= 0
            if self.missing == 0 and self.bytes == 0:
                self.phase, self.missing = self.phase + 1, self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase % 2 != parity, WAITING), "nobody arrives"


class Barriers(list[Barrier]):
    def index(self, number: int) -> Barrier:
        return self[number]


class Descriptor:
    def __init__(self, to: Tensor, block: list[int]) -> None:
        self.to, self.block, self.dtype, self.layout = to, block, to.dtype, None
        self.block_type = SimpleNamespace(nbytes=math.prod(block) * to.element_size())

    def tile(self, at: list[Any]) -> Tensor:
        """What there is of it: less than a block at the end."""
        assert len(at) == len(self.block)
        return self.to[*(slice(int(one), int(one) + size) for one, size in zip(at, self.block, strict=True))]


class Kernel:
    def __init__(self, run: Any) -> None:
        self.run = run

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int, **constants: Any) -> None:
            given = [Pointer(one) if isinstance(one, Tensor) else one for one in arguments]
            PROGRAMS[:] = [torch.tensor(size) for size in (*grid, 1, 1)[:3]]
            for place in itertools.product(*map(range, (*grid, 1, 1)[:3])):
                PROGRAM[:] = [torch.tensor(at) for at in place]
                self.run(*given, **constants)

        return launch


def _load(x: Pointer, mask: Any = None, other: float = 0.0) -> Tensor:
    at = torch.as_tensor(x.at)
    numbers = x.to.reshape(-1)
    return numbers[at] if mask is None else torch.where(mask, numbers[torch.where(mask, at, 0)], other).to(x.to.dtype)


def _store(x: Pointer, value: Tensor, mask: Any = None) -> None:
    there = torch.as_tensor(True if mask is None else mask).expand(value.shape)
    x.to.view(-1)[x.at.expand(value.shape)[there]] = value[there]


def _mma(a: Any, b: Shared, total: Tensor, use_acc: bool = True, is_async: bool = False) -> Tensor:
    made = (a.numbers if isinstance(a, Shared) else a).float() @ b.numbers.float()
    assert made.shape == total.shape
    return total + made if use_acc else made


def _where(chosen: Any, one: Any, other: Any) -> Any:
    return torch.where(torch.as_tensor(chosen), torch.as_tensor(one), torch.as_tensor(other))


def _shared(dtype: torch.dtype, shape: list[int], _: Any) -> Any:
    if dtype == torch.int64:
        return Barriers(Barrier() for _ in range(shape[0])) if len(shape) > 1 else Barrier()
    return Shared(torch.full(shape, float("nan"), dtype=dtype))


def _copy_in(given: Descriptor, at: list[Any], bar: Barrier, to: Shared) -> None:
    there = given.tile(at)
    block = there.new_zeros(given.block)
    block[*map(slice, there.shape)] = there
    to.store(block)
    bar.take(0, -given.block_type.nbytes)


def _side_by_side(parts: list[tuple[Any, tuple[Any, ...]]], *_: Any) -> None:
    with torch.no_grad(), ThreadPoolExecutor(len(parts)) as pool:
        running = [pool.submit(torch.no_grad()(run), *arguments) for run, arguments in parts]
        for each in running:
            each.result()


def _exchange(x: Pointer, value: int, sem: str) -> None:
    x.to[int(x.at)] = value


def _nothing(*_: Any, **__: Any) -> None:
    return None


def launches() -> Any:
    """The launches of ``model.layers.mamba3.hopper``, imported with torch in Gluon's place: in a process of its own."""
    from model.layers.mamba3 import kernels

    by_code = {
        kernels.EXP.value: torch.exp,
        kernels.SIGMOID.value: torch.sigmoid,
        kernels.TURNS.value: lambda x: (x.cos(), x.sin()),
        kernels.WIDENED.value: Tensor.float,
    }
    language = SimpleNamespace(
        tensor=Tensor,
        constexpr=object,
        float32=torch.float32,
        int64=torch.int64,
        bfloat16=torch.bfloat16,
        inline_asm_elementwise=lambda code, _, given, **__: by_code[getattr(code, "value", code)](*given),
        program_id=lambda axis: PROGRAM[axis],
        arange=lambda low, high, _: torch.arange(low, high),
        load=_load,
        store=_store,
        where=_where,
        minimum=min,
        floor=torch.floor,
        sum=lambda x, axis: x.sum(axis),
        static_range=range,
        reshape=lambda x, shape: x.reshape(*shape),
        permute=lambda x, order: x.permute(*order),
        join=lambda one, other: torch.stack((one, other), -1),
        convert_layout=lambda x, _: x,
        full=lambda shape, value, dtype, _: torch.full(shape, value, dtype=dtype),
        allocate_shared_memory=_shared,
        split=lambda x: (x[..., 0], x[..., 1]),
        maximum=max,
        warp_specialize=_side_by_side,
        num_programs=lambda axis: PROGRAMS[axis],
        atomic_xchg=_exchange,
        atomic_add=lambda x, _, sem: x.to[int(x.at)],
        DistributedLinearLayout=_nothing,
        SwizzledSharedLayout=_nothing,
        thread_barrier=_nothing,
        static_assert=_nothing,
        BlockedLayout=_nothing,
        SliceLayout=_nothing,
        NVMMADistributedLayout=_nothing,
        DotOperandLayout=_nothing,
        NVMMASharedLayout=SimpleNamespace(get_default_for=_nothing),
    )
    tma = SimpleNamespace(
        async_copy_global_to_shared=_copy_in,
        async_copy_shared_to_global=lambda x, at, given: x.tile(at).copy_(given.numbers),
        store_wait=_nothing,
    )
    mbarrier = SimpleNamespace(
        init=lambda bar, count: bar.init(count),
        expect=lambda bar, bytes: bar.take(1, bytes),
        arrive=lambda bar, count: bar.take(count, 0),
        wait=lambda bar, parity: bar.wait(parity),
        invalidate=_nothing,
        MBarrierLayout=_nothing,
    )
    hopper = SimpleNamespace(
        fence_async_shared=_nothing,
        mbarrier=mbarrier,
        tma=tma,
        warpgroup_mma=_mma,
        warpgroup_mma_wait=lambda _, deps: deps[0] if len(deps) == 1 else deps,
    )
    gluon = SimpleNamespace(jit=Kernel, language=language)
    descriptor = SimpleNamespace(from_tensor=lambda x, block, _: Descriptor(x, block))
    name = "triton.experimental.gluon"
    stands = {
        name: gluon,
        f"{name}.language": language,
        f"{name}.language.nvidia.hopper": hopper,
        f"{name}.nvidia.hopper": SimpleNamespace(TensorDescriptor=descriptor),
    }
    real = {each: importlib.import_module(each) for each in stands}
    sys.modules.update(stands)
    triton.experimental.gluon = gluon
    made = importlib.import_module("model.layers.mamba3.hopper.launches")
    importlib.import_module("model.layers.mamba3.hopper.parts").programs = lambda _: AT_ONCE[0]
    sys.modules.update(real)  # Triton's own code imports from it
    triton.experimental.gluon = real[name]
    return made.LAUNCHES
