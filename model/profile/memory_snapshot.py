"""A report of a GPU that ran out of memory: the allocator's snapshot, the holders of the memory, and the way out.

Recording keeps the Python stack of each live block (about 2 µs an allocation by torch's own account) and a ring of the
last ``MAX_ENTRIES`` allocations and frees. The snapshot opens at https://pytorch.org/memory_viz, offline too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model.definition.memory import GIB
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import replacing, write_atomic

MAX_ENTRIES = 50_000
LARGEST = 25
REMEDY = "--set micro_batch=ROWS with fewer, a larger expert_parallel or pipeline_parallel, or --set recompute=true"
MODEL = str(Path(__file__).parents[1]) + os.sep
TORCH = f"site-packages{os.sep}torch{os.sep}"
logger = logging.getLogger("model.profile.memory_snapshot")


class OutOfMemory(PatchlaneError):
    """The model does not fit the GPU in this layout."""


def record(max_entries: int = MAX_ENTRIES) -> bool:
    """Start recording in this process, once CUDA is up; False where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return False
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=max_entries)
    return True


@contextlib.contextmanager
def guard(run_dir: Path, layout: str, rank: int = 0) -> Iterator[None]:
    """Turn ``torch.OutOfMemoryError`` into OutOfMemory after writing ``oom.rankN.pickle`` and ``oom.rankN.md``.

    ``layout`` describes the attempt: "micro-batch 4 x 4096, EP 1, PP 1". Other errors pass untouched.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        cause = str(error).splitlines()[0]
        written = _leave(run_dir, rank, f"rank {rank}, {layout}: {cause}")
        raise OutOfMemory(f"out of GPU memory on rank {rank} ({layout}): {cause}{written}", REMEDY) from error


def _leave(run_dir: Path, rank: int, headline: str) -> str:
    """Write both files and name the report; log a failure, so that it never hides the error itself."""
    import torch

    stem = run_dir / f"oom.rank{rank}"
    try:
        snapshot, stats = torch.cuda.memory._snapshot(), torch.cuda.memory_stats()
        write_atomic(stem.with_name(stem.name + ".md"), summary(headline, snapshot, stats).encode())
        with replacing(stem.with_name(stem.name + ".pickle")) as scratch, scratch.open("wb") as sink:
            pickle.dump(snapshot, sink)
    except Exception as error:
        logger.warning("no memory snapshot could be written to %s: %s: %s", run_dir, type(error).__name__, error)
        return ""
    return f"; who held it: {stem}.md"


def summary(headline: str, snapshot: Mapping[str, Any], stats: Mapping[str, int]) -> str:
    """Markdown: peak and current memory, then live blocks by the line that allocated them, largest first."""
    live, blocks = held(snapshot)
    lines = [
        "# Out of GPU memory",
        "",
        headline,
        "",
        f"- allocated now: {stats.get('allocated_bytes.all.current', 0) / GIB:.2f} GiB",
        f"- allocated at most: {stats.get('allocated_bytes.all.peak', 0) / GIB:.2f} GiB",
        f"- reserved by the allocator: {stats.get('reserved_bytes.all.current', 0) / GIB:.2f} GiB",
        f"- reserved and split too small to use: {stats.get('inactive_split_bytes.all.current', 0) / GIB:.2f} GiB",
        f"- remedy: {REMEDY}",
        "",
        f"Live blocks by the Python line that allocated them, the {LARGEST} largest:",
        "",
        "| GiB | blocks | allocated at | called from |",
        "|---:|---:|---|---|",
    ]
    for place, size in sorted(live.items(), key=lambda item: -item[1])[:LARGEST]:
        lines.append(f"| {size / GIB:.3f} | {blocks[place]} | {place[0]} | {place[1]} |")
    return "\n".join(lines) + "\n"


def held(snapshot: Mapping[str, Any]) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    """Bytes and number of live blocks by (line that allocated them, line of ``model/`` that led there)."""
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"].startswith("active"):
                place = _place(block.get("frames") or [])
                sizes[place] += block["size"]
                counts[place] += 1
    return dict(sizes), dict(counts)


def _place(frames: list[dict[str, Any]]) -> tuple[str, str]:
    """Innermost frame outside torch, and innermost frame of the model; ``frames`` start with the innermost."""
    outside = [f for f in frames if TORCH not in f["filename"]]
    inside = [f for f in outside if f["filename"].startswith(MODEL)]
    first = outside or frames
    unknown = "not recorded (allocated before recording began)"
    return _named(first[0]) if first else unknown, _named(inside[0]) if inside else "–"


def _named(frame: Mapping[str, Any]) -> str:
    short = "/".join(Path(frame["filename"]).parts[-3:])
    return f"{short}:{frame['line']} `{frame['name']}`"
