"""Mamba-3, of rank 1 SISO, else MIMO."""

from __future__ import annotations

from dataclasses import dataclass

from model.kinds.kind import BF16, FP32, Frozen, Kernels, Kind, Products, Seen, Shapes

FORWARD = Kernels("Mamba-3 MIMO forward", ("Mamba-3 MIMO fwd",))
BACKWARD = Kernels(
    "Mamba-3 MIMO backward", ("Mamba-3 MIMO bwd_fwd", "Mamba-3 MIMO bwd_bwd", "Mamba-3 MIMO backward by blocks")
)


class Dims(Frozen):
    """As mamba_ssm.modules.mamba3.Mamba3 names its arguments."""

    expand: int = 2
    head_dim: int = 64
    groups: int = 8
    state: int = 128
    rank: int = 4
    chunk: int = 16
    rope_fraction: float = 0.5
    dt_min: float = 0.001
    dt_max: float = 0.1
    A_floor: float = 1e-4

    @property
    def mimo(self) -> bool:
        return self.rank > 1


@dataclass(frozen=True)
class Mamba3(Kind):
    dims: Dims

    name = "mamba3"
    label = "Mamba-3"
    symbol = "M"
    groups = ("mamba3",)
    matrices = frozenset({"in_proj", "out_proj"})
    names = (("mixer.mamba", "mamba"),)

    @property
    def inner(self) -> int:
        return self.hidden * self.dims.expand

    @property
    def heads(self) -> int:
        return self.inner // self.dims.head_dim

    @property
    def _bc(self) -> int:
        """Channels of B, and of C."""
        return self.dims.state * self.dims.groups * self.dims.rank

    @property
    def _projected(self) -> int:
        """Channels that in_proj gives: z and x, B and C, dt, A and trapezoid of each head, angles."""
        return 2 * self.inner + 2 * self._bc + 3 * self.heads + int(self.dims.state * self.dims.rope_fraction) // 2

    def parts(self) -> dict[str, Shapes]:
        """in_proj, out_proj, B and C biases and norms, D and dt biases, the projections of MIMO, the layer's norm."""
        m, h, heads = self.dims, self.hidden, self.heads
        found: Shapes = {
            "norm.weight": (h,),
            "mixer.mamba.in_proj.weight": (self._projected, h),
            "mixer.mamba.out_proj.weight": (h, self.inner),
            **{f"mixer.mamba.{name}_bias": (heads, m.rank, m.state) for name in "BC"},
            **{f"mixer.mamba.{name}_norm.weight": (m.state,) for name in "BC"},
            **{f"mixer.mamba.{name}": (heads,) for name in ("D", "dt_bias")},
        }
        mimo: Shapes = {f"mixer.mamba.mimo_{name}": (heads, m.rank, m.head_dim) for name in "xzo"}
        return {self.label: found | (mimo if m.mimo else {})}

    def products(self, seen: Seen) -> list[Products]:
        """SISO's kernels have other shapes and are not counted."""
        projections = 2 * self.hidden * (self._projected + self.inner)
        kernels = (FORWARD, BACKWARD) if self.dims.mimo else (None, None)
        return [
            Products(self.label, seen.tokens * projections),
            Products(self.label, seen.tokens * self.chunks(), *kernels),
        ]

    def chunks(self) -> float:
        """FLOPs a token of a chunk's four products a head over ``chunk * rank`` rows: QK', its V, Q state, K'V."""
        m = self.dims
        rows = m.chunk * m.rank
        return self.heads * 2 * rows * (rows * (m.state + m.head_dim) + 2 * m.state * m.head_dim) / m.chunk

    def published(self, sequence: int) -> float:
        """As Mamba-2, which has no rank."""
        m, h, inner = self.dims, self.hidden, self.inner
        return 2 * h * (2 * inner + 2 * m.state * m.groups + self.heads) + 7 * inner * m.state + 2 * inner * h

    def kept(self) -> float:
        m, heads = self.dims, self.heads
        angles = heads * int(m.state * m.rope_fraction) // 2
        return BF16 * (2 * self.hidden + 3 * self.inner + 4 * self._bc) + FP32 * (3 * heads + angles)

    def workspace(self) -> float:
        """The state before every chunk, and of MIMO its gradient at every other one and, of each head and rank, q, k,
        v, y and their gradients (``model.layers.mamba3.scan``)."""
        m = self.dims
        states = m.head_dim * m.state / m.chunk
        ranks = 4 * m.rank * (m.state + m.head_dim) if m.mimo else 0
        return BF16 * self.heads * (states + ranks)

    def normed(self) -> int:
        """The layer's norm, and those of B and C."""
        return self.hidden + 2 * self._bc

    def paced(self, tokens: float, row: int) -> dict[str, float]:
        """Its small kernels, by tokens and heads."""
        return {"Mamba-3 other": tokens * self.heads}
