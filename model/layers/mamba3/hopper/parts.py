"""What the kernels for sm_90 have in common: functions of Gluon, and the tiles that copies take."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from model.layers.mamba3.kernels import EXP, SIGMOID, TURNS, WIDENED


@gluon.jit  # type: ignore[untyped-decorator]
def exp(x: gl.tensor) -> gl.tensor:
    """exp of fp32 by the GPU's own approximation, good to a bit or two: what is below 2^-126 is 0."""
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        EXP,
        "=r,r",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit  # type: ignore[untyped-decorator]
def sigmoid(x: gl.tensor) -> gl.tensor:
    """As in ``kernels``, by the same instructions: Gluon's code calls no function of Triton's."""
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        SIGMOID,
        "=r,r",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit  # type: ignore[untyped-decorator]
def turns(x: gl.tensor) -> tuple[gl.tensor, gl.tensor]:
    """cos and sin of fp32, off by 1e-6 where |x| < 10,000: 2 pi as a number of nine bits and the rest of it."""
    times = gl.floor(x * 0.15915494309189535 + 0.5)
    x = x - times * 6.28125 - times * 0.0019353071795864769
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        TURNS,
        "=r,=r,r",
        [x],
        dtype=(gl.float32, gl.float32),
        is_pure=True,
        pack=1,
    )


@gluon.jit  # type: ignore[untyped-decorator]
def widened(x: gl.tensor) -> gl.tensor:
    """fp32 of bf16, one instruction each: two lie in a register, and Triton takes them apart first."""
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        WIDENED,
        "=r,=r,r",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )


@gluon.jit  # type: ignore[untyped-decorator]
def half(one: gl.tensor, other: gl.tensor, M: gl.constexpr, L: gl.constexpr) -> gl.tensor:
    """[M, L] of two times L / 2 columns, [T, R, L / 2] each."""
    return gl.reshape(gl.permute(gl.join(one, other), (0, 1, 3, 2)), [M, L])


@gluon.jit  # type: ignore[untyped-decorator]
def turned_half(
    low: gl.tensor,
    high: gl.tensor,
    cos: gl.tensor,
    sin: gl.tensor,
    dtype: gl.constexpr,
    M: gl.constexpr,
    L: gl.constexpr,
) -> gl.tensor:
    """[M, L] of what turns, low and high [T, R, L / 2] fp32, by cos and sin [T, 1, L / 2]."""
    return half((cos * low - sin * high).to(dtype), (sin * low + cos * high).to(dtype), M, L)


@gluon.jit  # type: ignore[untyped-decorator]
def pieces(
    x: gl.tensor, T: gl.constexpr, R: gl.constexpr, L: gl.constexpr, wide: gl.constexpr
) -> tuple[gl.tensor, gl.tensor]:
    """[T, R, L / 2] each of x [T R, L]: the columns that turn, and those that do not."""
    turning, still = gl.split(gl.permute(gl.reshape(x, [T, R, 2, L // 2]), (0, 1, 3, 2)))
    return gl.convert_layout(turning, wide), gl.convert_layout(still, wide)


@gluon.jit  # type: ignore[untyped-decorator]
def places(ROWS: gl.constexpr, COLUMNS: gl.constexpr, STRIDE: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """[ROWS, COLUMNS]: where each number lies, of rows that begin STRIDE apart."""
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    return gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None] * STRIDE + column


@functools.cache
def programs(device: torch.device) -> int:
    """As many as run at a time, one on each multiprocessor."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def tiles(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of x [..., heads, width], ``rows`` rows of ``columns`` of a head's numbers at a time."""
    return boxes(x.view(-1, x.shape[-2] * x.shape[-1]), rows, columns)


def matrices(x: Tensor) -> TensorDescriptor:
    """Of x [..., N, P], one [N, P] at a time."""
    return boxes(x.view(-1, x.shape[-1]), *x.shape[-2:])


def boxes(x: Tensor, *block: int) -> TensorDescriptor:
    """Of x, as many of each dimension at a time; what lies beyond its end is zero."""
    return TensorDescriptor.from_tensor(x, list(block), _layout(block, x.dtype == torch.float32))


@functools.cache
def _layout(block: tuple[int, ...], fp32: bool) -> gl.NVMMASharedLayout:
    """Kept: a launch has some ten, and to make one takes the host as long as the rest of a descriptor."""
    return gl.NVMMASharedLayout.get_default_for(list(block), gl.float32 if fp32 else gl.bfloat16)
