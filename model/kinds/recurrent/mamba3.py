"""Mamba-3, of rank 1 SISO, else MIMO."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Any

from model.kinds.kind import BF16, FP32, Frozen, Kernels, Kind, Products, Seen, Shapes
from model.kinds.path import Part, Path, Seam
from model.kinds.run import Run, bf16, gpu, rows

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
    spec = "model.layers.mamba3.install:layer"
    slot = "mamba_layer"
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
        """The state before every chunk and, of MIMO, q, k, v, y and their gradients of each head and rank: the most
        that a backward pass keeps. That of ``model.layers.mamba3.scan`` keeps no v, mamba-ssm's much less."""
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


MAMBA3 = "mamba_ssm.modules.mamba3:Mamba3"
MAMBA3_SHA256 = "5f4cea4f314c221b79be1a2f877d45ed961074cb26e1defee1520a6090320e5f"
WGRAD = Seam(
    "mamba3_wgrad",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="torch's linear layers, Mamba3's and ours, add weight gradients to Megatron's, multiply in FP8 or in parts",
    ours="fp32 gradients beside parameters are Megatron's, of which mamba-ssm's layers know nothing",
)
TORCH = Seam(
    "mamba3_torch",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="Mamba3's own code with scan and norms in torch where kernels cannot run or are not wanted",
    ours="a reference for hosts without a GPU",
)
ROWS = Seam(
    "mamba3_rows",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="the dense kernels on rows of one length: the state is forgotten where a document begins",
    ours="rows of one length are this trainer's layout: upstream's kernels take a stream or a batch",
)
HOPPER = Seam(
    "mamba3_hopper",
    upstream="mamba_ssm.ops.tilelang.mamba3.mamba3_mimo:_Mamba3Function",
    sha256="22d520c8f0a891af0ca0aa01ca92a92e61478e1ce2f76df3b2e95a41abdb0325",
    also=("f1659b39c326f8c40a1094f9ba53c476d123a08d52a353c0012f63009e05fa7d",),  # without pack 53
    reason="both passes by kernels for sm_90, side by side in blocks; angles summed by longer ones",
    ours="they are in Gluon, which is experimental, for Triton 3.6, one GPU and one shape; what is not, is pack 53",
)


def _mimo(size: Any, run: Run) -> str | None:
    return None if size.mamba.mimo else "Mamba-3 is SISO"


def _siso(size: Any, run: Run) -> str | None:
    return "Mamba-3 is MIMO" if size.mamba.mimo else None


def _whole_chunks(size: Any, run: Run) -> str | None:
    chunk = size.mamba.chunk
    if run.row is None or run.row % chunk == 0:
        return None
    return f"rows of {run.row} tokens are no whole chunks of {chunk}"


def _pairs_of_chunks(size: Any, run: Run) -> str | None:
    m = size.mamba
    sizes = {"rank": m.rank, "state": m.state, "head": m.head_dim, "chunk": m.chunk}
    if odd := [f"{name} {n}" for name, n in sizes.items() if n & (n - 1)]:
        return f"{', '.join(odd)}: no power of two"
    if size.mamba_heads % 2:
        return f"{size.mamba_heads} heads are no pairs"
    if min(m.state // 2, m.head_dim, m.chunk * m.rank) < 16:  # a side of tl.dot
        return f"state {m.state}, head {m.head_dim} or {m.chunk * m.rank} rows of a chunk are too small"
    if run.row and run.row % (2 * m.chunk):
        return f"rows of {run.row} tokens are no pairs of chunks of {m.chunk}"
    return None


def _hopper(size: Any, run: Run) -> str | None:
    if not run.hopper:
        return "the GPU is no Hopper (compute capability 9.0)"
    m = size.mamba
    if (m.rank, m.chunk, m.state, m.head_dim, m.rope_fraction) != (4, 16, 128, 64, 0.5):
        return "rank, chunk, state, head and rope_fraction are not 4, 16, 128, 64 and 0.5"
    each = size.mamba_heads // m.groups
    return None if 4 < each <= 16 else f"a group has {each} heads, not 5 to 16"


def _gluon(size: Any, run: Run) -> str | None:
    """Gluon is experimental: another release of Triton may have another."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # nor does one that torch's nightly builds bring by another name
        found = "none of that name"
    return None if found.startswith("3.6.") else f"Gluon of Triton 3.6 is needed, installed is {found}"


# TileLang's kernels, by the names that model.loop.compile_mamba3 gives them: for one document or rows, and packed ones
_DENSE = ("fwd", "bwd_fwd", "bwd_bwd")
EVERY = (*(f"{kernel}_varlen" for kernel in _DENSE), *_DENSE)
_FORWARD = {"Mamba-3 MIMO fwd": r"mamba_mimo_fwd|^mimo_forward"}
_BY_BLOCKS = "Mamba-3 MIMO backward by blocks"
_UPSTREAM = {
    "Mamba-3 MIMO bwd_bwd": r"mamba_mimo_bwd_bwd",
    "Mamba-3 MIMO bwd_fwd": r"mamba_mimo_bwd_fwd",
    _BY_BLOCKS: r"^mimo_(factors|states|carry|backward|gates|fold)_kernel",  # pack 53's
    **_FORWARD,
    "Mamba-3 other": r"mamba3_|dacs_segsum|dadt_cumsum|dtrap_ddt|segsum_dadt|angle_dt_",
}
_OURS = _FORWARD | {_BY_BLOCKS: r"^mimo_(turned|states|backward|gates|fold|sums|weights)"}
PARTS = (
    Part(
        "mamba3",
        "Mamba-3",
        layers=True,
        paths=(
            Path(
                "hopper_rows",
                needs=(gpu, _hopper, _gluon, bf16, _mimo, rows, _pairs_of_chunks),
                seams=(ROWS, HOPPER),
                kernels=_OURS,
                graphs=False,
            ),
            Path(  # kernels for its one shape where pack 17 is in the stack, and those for any shape elsewhere
                "tilelang_rows",
                needs=(gpu, bf16, _mimo, rows, _whole_chunks),
                seams=(ROWS,),
                compiles=EVERY,
                kernels=_UPSTREAM,
            ),
            Path("tilelang", needs=(gpu, bf16, _mimo), compiles=EVERY, kernels=_UPSTREAM),
            Path("triton", needs=(_siso, gpu), kernels={"Mamba-3 other": r"mamba3_"}),
            Path("torch", seams=(TORCH,)),
            Path(
                "torch_rows",
                needs=(_mimo, rows, _whole_chunks),
                seams=(TORCH, ROWS),
                option="rows as a GPU takes them, where there is none",
            ),
        ),
    ),
    Part(
        "mamba_proj",
        "Mamba-3's projections",
        (
            Path("bf16_parts", needs=(gpu, bf16), seams=(WGRAD,), install="model.layers.mamba3.install:in_parts"),
            Path("bf16"),
            Path(
                "fp8_parts",
                needs=(gpu, bf16),
                seams=(WGRAD,),
                install="model.layers.mamba3.install:in_fp8_parts",
                option="products of Mamba-3's projections in FP8",
            ),
        ),
    ),
    Part(
        "bc_norm",
        "Mamba-3's norms of B and C",
        (
            Path("mamba", needs=(gpu,)),
            Path("torch", seams=(TORCH,)),
        ),
    ),
)
