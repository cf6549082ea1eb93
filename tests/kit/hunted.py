"""A toy upstream for the hunt: x squared times w, right, and with a fault for each relation. Its targets."""

from pathlib import Path

import torch

from reproducers.studies.hunt.targets.target import Operand, Target

PREPARED = "pass"
KIT = str(Path(__file__).parent)


def squared(x, w):
    return x.square() * w


class Square(torch.autograd.Function):
    """Right: each fault overrides one method."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.square() * w

    @staticmethod
    def backward(ctx, go):
        x, w = ctx.saved_tensors
        return 2 * x * w * go, (x.square() * go).flatten(0, -2).sum(0)


class HalfGradient(Square):
    @staticmethod
    def backward(ctx, go):
        dx, dw = Square.backward(ctx, go)
        return dx / 2, dw


class NoWeightGradient(Square):
    @staticmethod
    def backward(ctx, go):
        dx, dw = Square.backward(ctx, go)
        return dx, dw if ctx.needs_input_grad[0] else None


class ScaledInPlace(Square):
    @staticmethod
    def forward(ctx, x, w):
        ctx.dx, ctx.dw = 2 * x * w, x.square()
        return x.square() * w

    @staticmethod
    def backward(ctx, go):
        return ctx.dx.mul_(go), ctx.dw.mul_(go).flatten(0, -2).sum(0)


class OverwritesItsInput(Square):
    @staticmethod
    def backward(ctx, go):
        dx, dw = Square.backward(ctx, go)
        return ctx.saved_tensors[0].data.copy_(dx), dw


class OverwritesFromAbove(Square):
    @staticmethod
    def backward(ctx, go):
        dx, dw = Square.backward(ctx, go)
        go.data.copy_(dx)
        return dx, dw


class Clipped(Square):
    @staticmethod
    def backward(ctx, go):
        return Square.backward(ctx, go.clamp(max=0.2))


class OtherWithoutGrad(Square):
    @staticmethod
    def forward(ctx, x, w):
        y = Square.forward(ctx, x, w)
        return y if any(ctx.needs_input_grad) else y * 1.01


class Unwritten(Square):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.empty_like(x)
        y[0] = Square.forward(ctx, x, w)[0]
        return y


class OneBuffer(Square):
    kept = None

    @staticmethod
    def forward(ctx, x, w):
        if OneBuffer.kept is None or OneBuffer.kept.shape != x.shape:
            OneBuffer.kept = torch.empty_like(x)
        OneBuffer.kept.data.copy_(x)  # in silence
        ctx.save_for_backward(OneBuffer.kept.data, w)
        return x.square() * w


class TakesItForContiguous(Square):
    @staticmethod
    def forward(ctx, x, w):
        flat = torch.empty_like(x, memory_format=torch.contiguous_format)
        return Square.forward(ctx, x.as_strided(x.shape, flat.stride()), w)


class MixesRows(Square):
    @staticmethod
    def forward(ctx, x, w):
        return Square.forward(ctx, x, w) * (1 + 0.01 * x[0].mean())


class Breaks(Square):
    @staticmethod
    def forward(ctx, x, w):
        if x.shape[1] == 3:
            w = w[[x.shape[1]]]
        return Square.forward(ctx, x, w)


def call(function, x, w):
    return function.apply(x, w)


def target(function, known=True):
    """The toy's target for one of the classes above, with a reference or without."""
    return Target(
        function.__name__,
        f"toyup.ops:{function.__name__}",
        (Operand("x", "B T H"), Operand("w", "H", "scale")),
        {"B": (1, 2, 3), "T": (1, 3), "H": (1, 4, 7)},
        {},
        squared if known else None,
        call,
        rows="B",
    )


FAULTS = {
    "reference": HalfGradient,
    "frozen": NoWeightGradient,
    "second_backward": ScaledInPlace,
    "unchanged": OverwritesItsInput,
    "other_consumer": OverwritesItsInput,
    "residual": OverwritesFromAbove,
    "linear": Clipped,
    "without_grad": OtherWithoutGrad,
    "poisoned": Unwritten,
    "two_graphs": OneBuffer,
    "layouts": TakesItForContiguous,
    "rows": MixesRows,
    "runs": Breaks,
}
TARGETS = (target(Square), target(HalfGradient))
OPS = """\
import torch


class Square(torch.autograd.Function):
    factor = 2

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.square() * w

    @classmethod
    def backward(cls, ctx, go):
        x, w = ctx.saved_tensors
        return cls.factor * x * w * go, (x.square() * go).flatten(0, -2).sum(0)


class HalfGradient(Square):
    factor = 1
"""


def prepare(tree):
    """Nothing stands in for anything here."""
