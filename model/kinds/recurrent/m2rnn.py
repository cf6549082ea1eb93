"""M²RNN (arXiv 2603.14360): a recurrence over a matrix a head, one token after another."""

from __future__ import annotations

from dataclasses import dataclass

from model.kinds.kind import BF16, FP32, Frozen, Kernels, Kind, Products, Seen, Shapes
from model.kinds.path import Part, Path
from model.kinds.run import gpu_or_interpreter, triton

RECURRENCE = Kernels("M²RNN", ("M²RNN",))


class Dims(Frozen):
    """One q and one k head, ``heads`` of v."""

    heads: int
    k_dim: int = 64
    v_dim: int = 16
    conv: int = 4


@dataclass(frozen=True)
class M2rnn(Kind):
    """``counted_as``: the layer that Megatron's published formula takes it for."""

    dims: Dims
    counted_as: Kind

    name = "m2rnn"
    label = "M²RNN"
    # It takes the slot of Megatron's gated delta net, for which Megatron-Core builds any spec given.
    symbol = "G"
    spec = "model.layers.m2rnn.install:layer"
    slot = "gdn_layer"
    groups = ("m2rnn",)
    matrices = frozenset({"in_proj", "out_proj", "forget_proj"})
    names = (("mixer", "m2rnn"),)

    @property
    def inner(self) -> int:
        return self.dims.heads * self.dims.v_dim

    def parts(self) -> dict[str, Shapes]:
        """in_proj to q, k, v and gate, forget_proj; convolution with bias on q, k, v; W, D and norm on v's channels;
        A_log and dt_bias; out_proj; the layer's norm."""
        r, h, inner = self.dims, self.hidden, self.inner
        mixed = 2 * r.k_dim + inner
        found: Shapes = {
            "norm.weight": (h,),
            "mixer.in_proj.weight": (mixed + inner, h),
            "mixer.forget_proj.weight": (r.heads, h),
            "mixer.conv_weight": (mixed, r.conv),
            "mixer.conv_bias": (mixed,),
            "mixer.W": (r.heads, r.v_dim, r.v_dim),
            "mixer.D": (r.heads, r.v_dim),
            "mixer.norm.weight": (inner,),
            "mixer.A_log": (r.heads,),
            "mixer.dt_bias": (r.heads,),
            "mixer.out_proj.weight": (h, inner),
        }
        return {self.label: found}

    def products(self, seen: Seen) -> list[Products]:
        """Projections, and the recurrence: h W, k v', q'h."""
        r, h, inner = self.dims, self.hidden, self.inner
        projections = 2 * h * (2 * r.k_dim + 2 * inner + r.heads) + 2 * inner * h
        state = 2 * r.heads * r.k_dim * r.v_dim * (r.v_dim + 2)
        return [
            Products(self.label, seen.tokens * projections),
            Products(self.label, seen.tokens * state, RECURRENCE),
        ]

    def published(self, sequence: int) -> float:
        return self.counted_as.published(sequence)

    def kept(self) -> float:
        r = self.dims
        return BF16 * (2 * self.hidden + 4 * self.inner + 4 * r.k_dim) + FP32 * r.heads * 2

    def paced(self, tokens: float, row: int) -> dict[str, float]:
        """The recurrence goes token by token, and rows run side by side."""
        return {"M²RNN": row}


KERNELS = {"M²RNN": r"m2rnn"}
PARTS = (
    Part(
        "m2rnn",
        "M²RNN",
        layers=True,
        paths=(
            Path("triton_whole", needs=(triton, gpu_or_interpreter), kernels=KERNELS),
            Path(
                "triton_kept",
                needs=(triton, gpu_or_interpreter),
                kernels=KERNELS,
                option="states kept until the backward pass: faster, with more memory",
            ),
            Path("torch"),
        ),
    ),
)
