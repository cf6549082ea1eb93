"""Compile Mamba-3's TileLang kernels side by side before the first step, which would compile them one by one.

Each takes 20 to 75 s of nvcc; TileLang keeps them on disk by content, so that the training processes load them. For a
packed stream shapes stay open (batch, length, heads, groups, documents): six kernels serve every batch, packed or of
one document. For rows of one shape there are three kernels, which the wrappers want under pack 17's switch; where pack
53's Triton kernels take the backward pass of rows, one.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from model.families.nam56r import Size
from model.families.sizes import readable
from model.kinds import catalogue
from model.kinds.recurrent import mamba3
from model.patched import overlay, stacks
from model.patched.overlay import Overlay
from model.patched.stacks import Stack
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.base.cli import guarded
from reproducers.upstream.store import Store

MODULE = "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_"
FACTORIES = {"fwd": "mamba_mimo_fwd", "bwd_fwd": "mamba_mimo_bwd_fwd", "bwd_bwd": "mamba_mimo_bwd_bwd"}
KERNELS = mamba3.EVERY
SPECIALIZE = "MAMBA3_MIMO_SPECIALIZE"  # pack 17's switch: how many shapes get kernels of their own
GROUP, TURNS = 16, 16  # of pack 53: heads of a group that a program takes, and launches for one backward pass, at most
app = typer.Typer(add_completion=False)


class Kernels(NamedTuple):
    """Names of kernels and, if they are made for rows of one shape, the number of rows and of a row's tokens."""

    names: tuple[str, ...]
    fixed: tuple[int, int] | None = None


def wanted(path: str, size: Size, rows: int, row: int | None, packs: set[int]) -> Kernels:
    """The kernels that a path of the mixer takes, none or some, of rows of one shape where pack 17 makes them for it.

    A packed stream has no such shape: its number of documents, a part of it, changes at every step.
    """
    names = catalogue.PARTS["mamba3"].path(path).compiles
    if not path.endswith("_rows") or row is None:
        return Kernels(names)
    fixed = (rows, row) if 17 in packs else None
    if 53 in packs and side_by_side(size, rows, row):
        dense: tuple[str, ...] = ("fwd",)
    else:
        dense = tuple(FACTORIES) if fixed else KERNELS
    return Kernels(tuple(name for name in names if name in dense), fixed)


def side_by_side(size: Size, rows: int, row: int) -> bool:
    """Whether pack 53's kernels take the backward pass of rows in bf16: its ``can_run_parallel``, from a size."""
    m = size.mamba
    block, chunks = m.chunk * m.rank, rows * row // m.chunk
    if any(number & (number - 1) for number in (m.rank, m.state, m.head_dim)):
        return False
    if min(m.state // 2, m.head_dim, block) < 16 or m.state > 128 or m.state * m.head_dim > 8192 or block > 64:
        return False
    if row % (2 * m.chunk) or not 0 < chunks < 65536:
        return False
    return heads_at_once(size.mamba_heads, m.groups, m.rank, m.state, m.head_dim, m.chunk) > 0


def heads_at_once(heads: int, groups: int, rank: int, state: int, head_dim: int, chunk: int) -> int:
    """The heads that pack 53 takes at once, groups or a part of one, in the memory of TileLang's kernels; 0: none."""
    group, states = heads // groups, state * head_dim // chunk
    memory, most = heads * (2 * rank * state + states), 0
    for some in range(1, heads + 1):
        split = some < group
        if heads % some or (group % some if split else some % group) or min(some, group) > GROUP:
            continue
        folded = 2 * rank * state * groups * (3 if split else 1)
        if some * (4 * rank * (state + head_dim) + states) + folded <= memory:
            most = some
    return most if most * TURNS >= heads else 0


def compile_one(name: str, size: Size, fixed: tuple[int, int] | None) -> None:
    """Compile or load kernel ``name`` like mamba_ssm 2.3.2.post1's wrappers. Needs a GPU and the overlay.

    ``fixed``: rows and their length, for kernels of that shape.
    """
    import tilelang.language as T

    packed = name.endswith("_varlen")
    kernel = name.removesuffix("_varlen")
    file = kernel.partition("_")[0] + ("_varlen" if packed else "")
    factory = getattr(importlib.import_module(MODULE + file), FACTORIES[kernel])
    m = size.mamba
    shape = [T.dynamic(dim) for dim in ("B", "S", "H", "G")] if fixed is None else [*fixed, size.mamba_heads, m.groups]
    static = {
        "chunk_size": m.chunk,
        "rotary_dim_divisor": int(2 / m.rope_fraction),
        "dtype": "bfloat16",
        "num_stages": 0,
        "threads": 256 if kernel == "bwd_bwd" else 128,
    }
    static |= {"NS": T.dynamic("NS"), "isVarlen": True} if packed else {}
    factory(*shape, m.state, m.head_dim, m.rank, True, True, True, **static)


def marker(size: Size, kernels: Kernels, stack: Overlay) -> Path:
    """The file among TileLang's kernels that marks these as compiled; emptying the cache removes it too.

    Without it each start would look every kernel up in a process of its own, some 20 s with its imports.
    """
    import torch

    made_of = [stack.trees["mamba-ssm"].digest, *(tree.digest for tree in stack.needs), size.mamba.model_dump_json()]
    made_of += [
        str(size.mamba_heads),
        repr(tuple(kernels)),
        torch.__version__,
        repr(torch.cuda.get_device_capability()),
    ]
    cache = Path(os.environ.get("TILELANG_CACHE_DIR") or Path.home() / ".tilelang" / "cache")
    return cache / f"nam56r-{hashlib.sha256(chr(10).join(made_of).encode()).hexdigest()[:32]}.compiled"


def compile_once(size: Size, patches: str, kernels: Kernels, stack: Overlay) -> None:
    """Call ``compile_all``, unless it has run for the same code, shapes and kind of GPU."""
    done = marker(size, kernels, stack)
    if not done.exists():
        compile_all(size, patches, kernels, stack.stack)
        write_atomic(done, b"")


def compile_all(size: Size, patches: str, kernels: Kernels, stack: Stack | None = None) -> None:
    """Compile all kernels at once, a process each. Raises PatchlaneError with the end of the compiler's output."""
    command = [sys.executable, "-m", "model.loop.compile_mamba3", size.name, "--patches", patches]
    command += ["--stack", stack.name] if stack else []
    command += ["--rows", str(kernels.fixed[0]), "--length", str(kernels.fixed[1])] if kernels.fixed else []
    command += ["--kernel"]
    root = Path(__file__).resolve().parents[2]
    running = {
        name: subprocess.Popen([*command, name], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name in kernels.names
    }
    for name, process in running.items():
        output, _ = process.communicate()
        if process.returncode:
            raise PatchlaneError(f"kernel {name} does not compile:\n{output[-2000:]}", " ".join([*command[1:], name]))


@app.command()
def main(
    size: Annotated[str, typer.Argument()],
    kernel: Annotated[str | None, typer.Option(help=f"one of {', '.join(KERNELS)}; default: those of a run")] = None,
    patches: Annotated[str, typer.Option(help="as for model.train")] = "all",
    rows: Annotated[int | None, typer.Option(min=1, help="with --length: kernels for rows of that shape")] = None,
    length: Annotated[int | None, typer.Option(min=1)] = None,
    of: Annotated[str, typer.Option("--stack", help="as for model.train")] = stacks.DEFAULT,
) -> None:
    """Compile a size's Mamba-3 kernels into TileLang's cache; on a GPU host only."""
    fixed = (rows, length) if rows and length else None
    if kernel not in (None, *KERNELS):
        raise PatchlaneError(f"no kernel is named {kernel!r}", f"choose one of: {', '.join(KERNELS)}")
    known, upstream = readable(size), stacks.named(of)
    stack = overlay.build(Store(), overlay.chosen(patches, stack=upstream), "cuda", upstream)
    if kernel is None:
        packs = {applied.pack.number for applied in stack.packs}
        kernels = wanted("tilelang_rows" if fixed else "tilelang", known, rows or 1, length, packs)
        compile_once(known, patches, kernels, stack)
        return
    overlay.activate(stack)
    compile_one(kernel, known, fixed)


if __name__ == "__main__":
    guarded(app)
