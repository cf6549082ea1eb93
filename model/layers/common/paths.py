"""Kernel paths: which implementations there are of each part of the model, what each needs, and the choice.

``choose`` reads the table once, before anything is built, locked or compiled. Nothing chooses again later: a layer runs
the path that it is given, or raises.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from model.families.nam56r import Size
from model.kinds.run import Run
from reproducers.base.errors import CannotTestHere, PatchlaneError

logger = logging.getLogger("model.paths")
AUTO = "auto"  # what is asked for unless a path is named
Need = Callable[[Size, Run], str | None]
NOTHING: Mapping[str, str] = {}
LONGEST = 8192  # keys of a row that the indexer's kernels hold in registers


@dataclass(frozen=True)
class Path:
    """A chosen implementation and the reason for it."""

    name: str
    reason: str


@dataclass(frozen=True)
class Kind:
    """A part of the model: its name for people, and its paths, best first, each with all that it needs."""

    label: str
    paths: dict[str, tuple[Need, ...]]


def _gpu(size: Size, run: Run) -> str | None:
    return "there is no GPU" if run.on_cpu else None


def _bf16(size: Size, run: Run) -> str | None:
    return None if run.bf16 else "weights are fp32"


def _rows(size: Size, run: Run) -> str | None:
    return "the stream is not rows of one length" if run.row is None else None


def _short_rows(size: Size, run: Run) -> str | None:
    long = run.row is not None and run.row > LONGEST
    return f"rows of {run.row} tokens are longer than {LONGEST}" if long else None


def _mimo(size: Size, run: Run) -> str | None:
    return None if size.mamba.mimo else "Mamba-3 is SISO"


def _siso(size: Size, run: Run) -> str | None:
    return "Mamba-3 is MIMO" if size.mamba.mimo else None


def _whole_chunks(size: Size, run: Run) -> str | None:
    chunk = size.mamba.chunk
    return (
        f"rows of {run.row} tokens are no whole chunks of {chunk}" if run.row is not None and run.row % chunk else None
    )


def _pairs_of_chunks(size: Size, run: Run) -> str | None:
    m = size.mamba
    sizes = {"rank": m.rank, "state": m.state, "head": m.head_dim, "chunk": m.chunk}
    if odd := [f"{name} {n}" for name, n in sizes.items() if n & (n - 1)]:
        return f"{', '.join(odd)}: no power of two"
    if size.mamba_heads % 2:
        return f"{size.mamba_heads} heads are no pairs"
    if min(m.state // 2, m.head_dim, m.chunk * m.rank) < 16:  # a side of tl.dot
        return f"state {m.state}, head {m.head_dim} or {m.chunk * m.rank} rows of a chunk are too small"
    return (
        f"rows of {run.row} tokens are no pairs of chunks of {m.chunk}" if run.row and run.row % (2 * m.chunk) else None
    )


def _hopper(size: Size, run: Run) -> str | None:
    if not run.hopper:
        return "the GPU is no Hopper (compute capability 9.0)"
    m = size.mamba
    if (m.rank, m.chunk, m.state, m.head_dim, m.rope_fraction) != (4, 16, 128, 64, 0.5):
        return "rank, chunk, state, head and rope_fraction are not 4, 16, 128, 64 and 0.5"
    each = size.mamba_heads // m.groups
    return None if 4 < each <= 16 else f"a group has {each} heads, not 5 to 16"


def _gluon(size: Size, run: Run) -> str | None:
    """Gluon is experimental: another release of Triton may have another."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # nor does one that torch's nightly builds bring by another name
        found = "none of that name"
    return None if found.startswith("3.6.") else f"Gluon of Triton 3.6 is needed, installed is {found}"


def _experts_elsewhere(size: Size, run: Run) -> str | None:
    return None if run.expert_parallel > 1 else "nothing is sent to other ranks"


def _gpu_unless_asked(size: Size, run: Run) -> str | None:
    return None if run.paths.get("moe") == "grouped_mm" else _gpu(size, run)


def _uncaptured(size: Size, run: Run) -> str | None:
    return "CUDA graphs capture another dispatcher's routers" if run.cuda_graphs else None


def _all_experts(size: Size, run: Run) -> str | None:
    return "tokens come from other ranks" if run.expert_parallel > 1 else None


def _gpu_bf16(size: Size, run: Run) -> str | None:
    return None if run.on_cpu else _bf16(size, run)


def _grouped_mm(size: Size, run: Run) -> str | None:
    import torch

    name = "torch.nn.functional.grouped_mm"
    return None if hasattr(torch.nn.functional, "grouped_mm") else f"torch {torch.__version__} has no {name}"


def _triton(size: Size, run: Run) -> str | None:
    return None if importlib.util.find_spec("triton") else "triton is not installed (pip install triton)"


def _gpu_or_interpreter(size: Size, run: Run) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return "there is no GPU, and no TRITON_INTERPRET=1" if run.on_cpu and not interpreted else None


def _eights(size: Size, run: Run) -> str | None:
    odd = [str(width) for width in (size.attention.qk_dim, size.attention.v_dim) if width % 8]
    return f"a head has {' and '.join(odd)} channels, no multiple of 8" if odd else None


def _powers_of_two(size: Size, run: Run) -> str | None:
    a = size.attention
    widths = {"qk_nope_dim": a.qk_nope_dim, "qk_rope_dim": a.qk_rope_dim, "v_dim": a.v_dim}
    odd = [f"{name} {width}" for name, width in widths.items() if width & (width - 1) or width < 4]
    return f"{' and '.join(odd)}: no power of two from 4" if odd else None


def _varlen(size: Size, run: Run) -> str | None:
    return None if importlib.util.find_spec("torch.nn.attention.varlen") else "torch has no torch.nn.attention.varlen"


# "tilelang_rows" gets kernels for its one shape where pack 17 is in the stack, and those for any shape elsewhere.
KINDS = {
    "mamba3": Kind(
        "Mamba-3",
        {
            "hopper_rows": (_gpu, _hopper, _gluon, _bf16, _mimo, _rows, _pairs_of_chunks),
            "blocks_rows": (_gpu, _bf16, _mimo, _rows, _pairs_of_chunks),
            "tilelang_rows": (_gpu, _bf16, _mimo, _rows, _whole_chunks),
            "tilelang": (_gpu, _bf16, _mimo),
            "triton": (_siso, _gpu),
            "torch": (),
            "torch_rows": (_mimo, _rows, _whole_chunks),
        },
    ),
    "mamba_proj": Kind(
        "Mamba-3's projections",
        {"bf16_parts": (_gpu, _bf16), "bf16": (), "fp8_parts": (_gpu, _bf16)},
    ),
    "mtp_proj": Kind("MTP's MLP and entrance", {"bf16": (), "fp8": (_gpu, _bf16)}),
    "norm": Kind("norms before layers", {"te": (_gpu, _bf16), "torch": ()}),
    "bc_norm": Kind("Mamba-3's norms of B and C", {"te": (_gpu, _bf16), "mamba": (_gpu,), "torch": ()}),
    "m2rnn": Kind(
        "M²RNN",
        {
            "triton_whole": (_triton, _gpu_or_interpreter),
            "triton_kept": (_triton, _gpu_or_interpreter),
            "triton": (_triton, _gpu_or_interpreter),
            "torch": (),
        },
    ),
    "mla": Kind("MLA", {"cudnn": (_gpu, _bf16, _eights), "flash": (_gpu, _bf16, _varlen), "torch": ()}),
    "rope": Kind("rotary embedding", {"triton": (_triton, _gpu_or_interpreter), "megatron": ()}),
    "qkv": Kind("queries, keys and values", {"whole": (_triton, _gpu_or_interpreter, _powers_of_two), "joined": ()}),
    "dsa": Kind("DSA", {"tilelang": (_gpu, _bf16), "megatron": ()}),
    "sparse": Kind("sparse attention's output", {"kept": (_gpu, _bf16, _rows), "again": ()}),
    "indexer": Kind(
        "indexer's loss",
        {
            "triton": (_triton, _gpu_or_interpreter, _gpu_bf16, _rows, _short_rows),
            "rows": (_rows,),
            "stream": (),
        },
    ),
    "moe": Kind(
        "MoE",
        {
            "grouped_mm": (_gpu_unless_asked, _all_experts, _grouped_mm, _gpu_bf16, _uncaptured),
            "grouped_fused": (_gpu,),
            "grouped": (_gpu,),
            "sequential": (),
        },
    ),
    "shared": Kind("shared experts", {"beside": (_gpu, _experts_elsewhere), "after": ()}),
    "router": Kind("routers' logits", {"parts": (_gpu, _bf16), "megatron": ()}),
    "balance": Kind("routers' balance loss", {"triton": (_triton, _gpu_or_interpreter), "megatron": ()}),
    "loss": Kind(
        "cross entropy", {"liger_once": (_gpu,), "liger_unread": (_gpu,), "liger": (_gpu,), "torch": (), "linear": ()}
    ),
    "wgrad": Kind("weight gradients", {"fused": (_gpu, _bf16), "added": ()}),
}

# With graphs they must be asked for: none has captured them yet.
UNTRIED_IN_GRAPHS = {
    "mamba3=hopper_rows",
    "mamba3=blocks_rows",
    "balance=triton",
    "indexer=triton",
    "qkv=whole",
    "sparse=kept",
}


def asked(pairs: Iterable[str]) -> dict[str, str]:
    """``["mamba3=torch"]`` as {kind: path}. PatchlaneError with the choices for a kind or path that there is not."""
    named = dict(pair.partition("=")[::2] for pair in pairs)
    for kind, path in named.items():
        _known(kind, path)
    return named


def able(size: Size, run: Run, gone: Mapping[str, str] = NOTHING) -> dict[str, list[tuple[str, str | None]]]:
    """{kind: [(path, what it lacks here)]}, best first; None: it lacks nothing.

    ``gone``: {"kind=path": why upstream's code cannot run it}.
    """
    lacks = {
        kind: [
            (path, [gone.get(f"{kind}={path}"), _untried(kind, path, run), *(need(size, run) for need in needs)])
            for path, needs in of.paths.items()
        ]
        for kind, of in KINDS.items()
    }
    return {kind: [(path, next(filter(None, said), None)) for path, said in of] for kind, of in lacks.items()}


def _untried(kind: str, path: str, run: Run) -> str | None:
    untried = f"{kind}={path}" in UNTRIED_IN_GRAPHS and run.paths.get(kind) != path
    return "no CUDA graph has captured it" if run.cuda_graphs and untried else None


def choose(size: Size, run: Run, gone: Mapping[str, str] = NOTHING) -> dict[str, Path]:
    """Every kind's path: the one that ``run`` asks for, else the first that lacks nothing; ``gone`` as ``able`` has it.

    PatchlaneError for a kind or path that there is not, CannotTestHere for one that is asked for and cannot run here.
    """
    for kind, path in run.paths.items():
        _known(kind, path)
    return {kind: _choose(kind, run.paths.get(kind, AUTO), paths) for kind, paths in able(size, run, gone).items()}


def _known(kind: str, path: str) -> None:
    if kind not in KINDS:
        raise PatchlaneError(f"--path {kind}={path}", f"--path KIND=PATH, KIND one of {', '.join(KINDS)}")
    names = [AUTO, *KINDS[kind].paths]
    if path not in names:
        raise PatchlaneError(f"--path {kind}={path}", f"--path {kind}=PATH, PATH one of {', '.join(names)}")


def _choose(kind: str, wanted: str, paths: list[tuple[str, str | None]]) -> Path:
    lacks = dict(paths)
    if wanted == AUTO:
        best = next(name for name, lack in paths if lack is None)  # one of each kind's needs nothing
        better = paths[: list(lacks).index(best)]
        return Path(best, "; ".join(f"{name}: {lack}" for name, lack in better) or "the best there is")
    if lacks[wanted] is not None:
        raise CannotTestHere(f"--path {kind}={wanted}: {lacks[wanted]}", f"--path {kind}={AUTO}, or leave it out")
    return Path(wanted, "asked for")


def announce(chosen: Iterable[tuple[str, str, Path]]) -> None:
    """One line for each (layer, label, path) in the log."""
    for layer, label, path in chosen:
        logger.info("layer %s, %s: path %s, %s", layer, label, path.name, path.reason)
