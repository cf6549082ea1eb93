"""What this GPU reaches, measured in the run itself: bf16 matrix products and a copy in its memory.

A product of ``rows`` by ``inner`` by ``columns`` is 2 * rows * inner * columns FLOPs; a copy of n bytes moves 2 n, read
and written. Both are medians by the GPU's clock, right after profiled steps, as warm as the GPU then is. Values are
normally distributed: products of zeros draw less power and run faster. What a rank measures is its own GPU's.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

WARM, REPEATS = 5, 30
SIZES = ((8192, 4096, 8192), (16384, 4096, 4096), (8192, 8192, 8192))  # tokens and widths as the model's own products
COPIED = (2**30, 2**29, 2**28)  # bytes, the first that fits; all are far above the 50 MiB of an H200's cache
NO_GPU = "there is no GPU"
NO_ROOM = "the GPU's memory has no room for them"


class Product(BaseModel):
    """A product of two bf16 matrices, with the seconds of one: the median of ``REPEATS``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    inner: int
    columns: int
    seconds: float

    @property
    def flops_per_second(self) -> float:
        return 2 * self.rows * self.inner * self.columns / self.seconds


class Copy(BaseModel):
    """A copy of ``size`` bytes within the GPU's memory, with the seconds of one: the median of ``REPEATS``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        return 2 * self.size / self.seconds


class Ceilings(BaseModel):
    """Of one GPU. ``skipped`` says why something was not measured; the fastest product counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    products: list[Product] = []
    copied: Copy | None = None
    skipped: str | None = None

    @property
    def flops_per_second(self) -> float | None:
        return max((product.flops_per_second for product in self.products), default=None)

    @property
    def bytes_per_second(self) -> float | None:
        return self.copied.bytes_per_second if self.copied else None


def seconds(run: Callable[[], object]) -> float:
    """Median seconds of ``run``'s work by the GPU's clock, after ``WARM`` untimed ones."""
    import torch

    for _ in range(WARM):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    took: list[float] = [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
    return statistics.median(took)


def measure(
    device: str | None = None,
    timed: Callable[[Callable[[], object]], float] = seconds,
    sizes: tuple[tuple[int, int, int], ...] = SIZES,
    copied: tuple[int, ...] = COPIED,
) -> Ceilings:
    """Measure both, on this process's GPU; a size that memory has no room for is left out.

    It draws no number from the run's own generators. The allocator keeps what it was given, for the next step.
    """
    import torch

    device = device or f"cuda:{torch.cuda.current_device()}"
    products: list[Product] = []
    for rows, inner, columns in sizes:
        try:
            products.append(
                Product(rows=rows, inner=inner, columns=columns, seconds=timed(_product(device, rows, inner, columns)))
            )
        except torch.OutOfMemoryError:
            continue
    copy = None
    for size in copied:
        try:
            copy = Copy(size=size, seconds=timed(_copy(device, size)))
            break
        except torch.OutOfMemoryError:
            continue
    return Ceilings(products=products, copied=copy, skipped=None if products and copy else NO_ROOM)


def _product(device: str, rows: int, inner: int, columns: int) -> Callable[[], object]:
    """A product as of a linear layer, activations by a weight's transpose, whose result is kept."""
    import torch

    draw = torch.Generator(device).manual_seed(0)
    left = torch.randn(rows, inner, device=device, dtype=torch.bfloat16, generator=draw)
    weight = torch.randn(columns, inner, device=device, dtype=torch.bfloat16, generator=draw)
    out = torch.empty(rows, columns, device=device, dtype=torch.bfloat16)
    return lambda: torch.mm(left, weight.t(), out=out)


def _copy(device: str, size: int) -> Callable[[], object]:
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)
