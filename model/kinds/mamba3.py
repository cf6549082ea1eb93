"""Mamba-3: its kernel paths."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from model.kinds.path import Part, Path, Seam
from model.kinds.run import Run, bf16, gpu, rows

MAMBA3 = "mamba_ssm.modules.mamba3:Mamba3"
MAMBA3_SHA256 = "5f4cea4f314c221b79be1a2f877d45ed961074cb26e1defee1520a6090320e5f"
BARE = Seam(
    "bare_mamba",
    upstream="mamba_ssm",
    sha256="d96b346da56c3c63a32224b5ca1d5af97526c3c95af83496c21c71d51dc2a36c",
    reason="mamba-ssm's __init__ imports the compiled extensions of layers that this model does not have",
)
WGRAD = Seam(
    "mamba3_wgrad",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="torch's linear layers, Mamba3's and ours, add weight gradients to Megatron's, multiply in FP8 or in parts",
)
TORCH = Seam(
    "mamba3_torch",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="Mamba3's own code with the scan in torch where the TileLang kernels cannot run or are not wanted",
)
NORM = Seam(
    "mamba3_norm",
    upstream="mamba_ssm.ops.triton.layernorm_gated:RMSNorm",
    sha256="fc8da4ade556216a39c8392eee5cbc9a002489cd69ac01df1b83b63930b38c76",
    reason="another library's RMSNorm with the same weight: mamba-ssm's Triton kernel takes row after row",
)
ROWS = Seam(
    "mamba3_rows",
    upstream=MAMBA3,
    sha256=MAMBA3_SHA256,
    reason="the dense kernels on rows of one length: the state is forgotten where a document begins",
)
BLOCKS = Seam(
    "mamba3_blocks",
    upstream="mamba_ssm.ops.tilelang.mamba3.mamba3_mimo:_Mamba3Function",
    sha256="f1659b39c326f8c40a1094f9ba53c476d123a08d52a353c0012f63009e05fa7d",
    reason="a backward pass that takes all chunks side by side, not one after the other; angles summed by longer ones",
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
DENSE = ("fwd", "bwd_fwd", "bwd_bwd")
EVERY = (*(f"{kernel}_varlen" for kernel in DENSE), *DENSE)
FORWARD = {"Mamba-3 MIMO fwd": r"mamba_mimo_fwd|^mimo_forward"}
UPSTREAM = {
    "Mamba-3 MIMO bwd_bwd": r"mamba_mimo_bwd_bwd",
    "Mamba-3 MIMO bwd_fwd": r"mamba_mimo_bwd_fwd",
    **FORWARD,
    "Mamba-3 other": r"mamba3_|dacs_segsum|dadt_cumsum|dtrap_ddt|segsum_dadt|angle_dt_",
}
OURS = FORWARD | {"Mamba-3 MIMO backward by blocks": r"^mimo_(turned|states|carry|backward|gates|fold|sums|weights)"}
PARTS = (
    Part(
        "mamba3",
        "Mamba-3",
        layers=True,
        paths=(
            Path(
                "hopper_rows",
                needs=(gpu, _hopper, _gluon, bf16, _mimo, rows, _pairs_of_chunks),
                seams=(ROWS, BLOCKS),
                kernels=OURS,
                graphs=False,
            ),
            Path(
                "blocks_rows",
                needs=(gpu, bf16, _mimo, rows, _pairs_of_chunks),
                seams=(ROWS, BLOCKS),
                compiles=("fwd",),
                kernels=OURS,
                graphs=False,
            ),
            Path(  # kernels for its one shape where pack 17 is in the stack, and those for any shape elsewhere
                "tilelang_rows",
                needs=(gpu, bf16, _mimo, rows, _whole_chunks),
                seams=(ROWS,),
                compiles=EVERY,
                kernels=UPSTREAM,
            ),
            Path("tilelang", needs=(gpu, bf16, _mimo), compiles=EVERY, kernels=UPSTREAM),
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
            Path("te", needs=(gpu, bf16), seams=(NORM,)),
            Path("mamba", needs=(gpu,)),
            Path("torch", seams=(NORM,)),
        ),
    ),
)
