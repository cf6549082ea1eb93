"""mHC, manifold-constrained hyper-connections: a residual of several streams, mixed before and after each sublayer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from model.kinds.kind import BF16, FP32, Frozen, Kind, Products, Seen, Shapes, under

PART, CONTRACTION = "mHC", "mHC head"  # rows of tables


class Dims(Frozen):
    """Streams of the residual; Sinkhorn's iterations, and what it adds to each sum."""

    streams: int = 4
    sinkhorn_iterations: int = 20
    eps: float = 1e-6

    @property
    def coefficients(self) -> int:
        """Of a token: one a stream before the sublayer, one a stream behind it, one from each stream to each."""
        return self.streams * (self.streams + 2)


@dataclass(frozen=True)
class Wrapped(Kind):
    """A sublayer that reads one mix of the streams and whose output is added to all of them."""

    hyper: Dims

    around: ClassVar[str]  # the name of its hyper-connection under the layer

    def around_parts(self) -> dict[str, Shapes]:
        """The projection of all streams to the coefficients, its bias, one scale each for pre, post and comb."""
        rows = self.hyper.coefficients
        found: Shapes = {
            "mapping_proj.weight": (rows, self.hyper.streams * self.hidden),
            "bias": (rows,),
            "scale": (3,),
        }
        return {PART: under(f"{self.around}.", found)}

    def around_products(self, seen: Seen) -> list[Products]:
        """The coefficients; the mix that is read; the streams among each other with the sublayer's output."""
        n, h = self.hyper.streams, self.hidden
        mixes = n + n * (n + 1)
        return [
            Products(PART, seen.tokens * 2 * self.hyper.coefficients * n * h),
            Products(PART, seen.tokens * 2 * mixes * h, None),
        ]

    def around_kept(self) -> float:
        """The streams, what is read of them and the sublayer's output; coefficients as projected and as used, Sinkhorn
        computed again."""
        return BF16 * (self.hyper.streams + 2) * self.hidden + FP32 * 2 * self.hyper.coefficients


def wrapped_names(around: str, theirs: str) -> tuple[tuple[str, str], ...]:
    """Names of the hyper-connection ``around`` in a checkpoint and, as ``theirs``, in transformers."""
    return (
        (f"{around}.mapping_proj.weight", f"{theirs}.fn"),
        (f"{around}.bias", f"{theirs}.base"),
        (around, theirs),
    )


def wrapped_makers(theirs: str, makers: str) -> tuple[tuple[str, str], ...]:
    """Names of transformers' hyper-connection ``theirs`` and, as ``makers``, in DeepSeek's files."""
    return tuple((f"{theirs}.{part}", f"{makers}_{part}") for part in ("fn", "base", "scale"))


def contraction(streams: int, hidden: int) -> Shapes:
    """What makes one stream of all at the end: a projection to one coefficient a stream, its bias and scale."""
    return {"mapping_proj.weight": (streams, streams * hidden), "bias": (streams,), "scale": (1,)}


def contraction_flops(streams: int, hidden: int) -> int:
    """FLOPs a token: the coefficients and the mix."""
    return 2 * streams * (streams * hidden + hidden)
