"""Hyper-connections on a GPU, forward and backward, with the values of ``deepseek_v4.hyper``."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from model.layers.deepseek_v4.hybrid.kernels import streams as kernels

STRETCHES = 8  # parts of d(fn)


class Constants(NamedTuple):
    """``iterations`` of Sinkhorn, 0 for the head, which has none; epsilons as HyperConnection's."""

    iterations: int
    eps: float
    norm_eps: float


class Read(NamedTuple):
    """A sublayer's input [..., d], ``post`` [..., n] and ``comb`` [..., n, n] fp32, and the streams, whose gradient is
    added where their others are made."""

    input: Tensor
    post: Tensor
    comb: Tensor
    streams: Tensor


def read(streams: Tensor, fn: Tensor, bias: Tensor, scale: Tensor, constants: Constants) -> Read:
    """As HyperConnection's forward: streams [..., n, d] bf16, fp16 or fp32; fn, bias and scale fp32, as it has them."""
    return Read(*_Read.apply(streams, fn, bias, scale, constants))


def collapse(streams: Tensor, fn: Tensor, bias: Tensor, scale: Tensor, constants: Constants) -> Tensor:
    """As HyperHead's forward: [..., d]."""
    found: Tensor = _Read.apply(streams, fn, bias, scale, constants)[0]
    return found


def expand(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """As ``deepseek_v4.hyper.expand``."""
    found: Tensor = _Expand.apply(output, streams, post, comb)
    return found


def _rows(tokens: int) -> int:
    """Of a product: each of its programs reads all of fn."""
    return 32 if tokens >= 8192 else 16


def _up(number: int) -> int:
    return int(triton.next_power_of_2(number))


class _Read(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, given: Tensor, fn: Tensor, bias: Tensor, scale: Tensor, constants: Constants
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        S, D = given.shape[-2:]
        x, fn = given.contiguous(), fn.contiguous()
        T, R = x.numel() // (S * D), len(fn)

        def new(*shape: int) -> Tensor:
            return x.new_empty(*shape, dtype=torch.float32)

        m, over, pre, post, comb = new(T, R), new(T), new(T, S), new(T, S), new(T, S, S)
        divisors = new(T, max(0, 2 * constants.iterations - 1), S)
        kernels.mapped[(triton.cdiv(T, _rows(T)),)](
            x, fn, m, over, constants.norm_eps, T, C=S * D, R=R, W=max(16, _up(R)), TOKENS=_rows(T),
            BLOCK=min(128, max(16, _up(S * D))), HALF=x.dtype == torch.bfloat16, num_warps=4,
        )  # fmt: skip
        if constants.iterations:
            kernels.balanced[(triton.cdiv(T, 32),)](
                m, scale, bias, pre, post, comb, divisors, constants.eps, T,
                S=S, P=_up(S), ITERATIONS=constants.iterations, TOKENS=32, num_warps=4,
            )  # fmt: skip
        else:
            pre = (m * scale + bias).sigmoid() + constants.eps
        u = x.new_empty(T, D)
        block = min(2048, _up(D))
        kernels.collapsed[(T, triton.cdiv(D, block))](x, pre, u, S=S, D=D, BLOCK=block)
        ctx.constants = constants
        ctx.save_for_backward(x, fn, bias, scale, m, over, pre, comb, divisors)
        ctx.set_materialize_grads(False)
        rest = given.shape[:-2]
        return u.view(*rest, D), post.view(*rest, S), comb.view(*rest, S, S), given.view_as(given)

    @staticmethod
    def backward(
        ctx: Any, du: Tensor | None, dpost: Tensor | None, dcomb: Tensor | None, around: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x, fn, bias, scale, m, over, pre, comb, divisors = ctx.saved_tensors
        (S, D), (T, R) = x.shape[-2:], m.shape
        du = torch.zeros(T, D, dtype=x.dtype, device=x.device) if du is None else du.contiguous()
        dpre, dz = torch.empty_like(pre), torch.empty_like(m)
        kernels.weighed[(T,)](x, du, dpre, S=S, D=D, BLOCK=_up(D), num_warps=8)
        if ctx.constants.iterations:
            dpost = torch.zeros_like(pre) if dpost is None else dpost.contiguous()
            dcomb = torch.zeros_like(comb) if dcomb is None else dcomb.contiguous()
            w, shrink = torch.empty_like(m), torch.empty_like(over)
            kernels.balanced_gradients[(triton.cdiv(T, 32),)](
                m, scale, bias, comb, divisors, dpre, dpost, dcomb, over, dz, w, shrink, T,
                D=D, S=S, P=_up(S), ITERATIONS=ctx.constants.iterations, TOKENS=32, num_warps=4,
            )  # fmt: skip
            both = (dz * m).sum(0)
            of_scale = torch.stack((both[:S].sum(), both[S : 2 * S].sum(), both[2 * S :].sum()))
        else:
            share = (m * scale + bias).sigmoid()
            dz = dpre * share * (1 - share)
            dm, of_scale = dz * scale, (dz * m).sum().reshape(1)
            w, shrink = dm * over[:, None], over.square() * (dm * m).sum(1) / (S * D)
        dx = torch.empty_like(x)
        half = x.dtype == torch.bfloat16
        wide, block = max(16, _up(R)), min(128, max(16, _up(D)))
        kernels.read_gradients[(triton.cdiv(T, _rows(T)), S, triton.cdiv(D, block))](
            x, fn, pre, du, w, shrink, x if around is None else around.contiguous(), dx, T,
            S=S, D=D, R=R, W=wide, TOKENS=_rows(T), BLOCK=block, AROUND=around is not None, HALF=half, num_warps=4,
        )  # fmt: skip
        parts = x.new_empty(STRETCHES, S * D, R, dtype=torch.float32)
        block = min(128, max(16, _up(S * D)))
        kernels.map_gradients[(triton.cdiv(S * D, block), STRETCHES)](
            x, w, parts, T, triton.cdiv(T, STRETCHES),
            C=S * D, R=R, W=wide, TOKENS=64, BLOCK=block, HALF=half, num_warps=4,
        )  # fmt: skip
        return dx, parts.sum(0).t().contiguous(), dz.sum(0), of_scale, None


class _Expand(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        S, D = streams.shape[-2:]
        output, streams, post, comb = (x.contiguous() for x in (output, streams, post, comb))
        y = torch.empty_like(streams)
        T, block = output.numel() // D, min(2048, _up(D))
        kernels.expanded[(T, triton.cdiv(D, block))](output, streams, post, comb, y, S=S, D=D, BLOCK=block)
        ctx.save_for_backward(output, streams, post, comb)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        output, streams, post, comb = ctx.saved_tensors
        S, D = streams.shape[-2:]
        made = tuple(torch.empty_like(x) for x in (output, streams, post, comb))
        kernels.expanded_gradients[(output.numel() // D,)](
            output, streams, post, comb, dy.contiguous(), *made, S=S, D=D, BLOCK=_up(D), num_warps=8
        )
        return made
