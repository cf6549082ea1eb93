"""Compile TileLang functions without a GPU: to CUDA source, and with nvcc to a cubin for its resource use.

What was compiled once is kept by content: the TIR text, the pass configs and TileLang's version for the CUDA source,
the source and nvcc's version for the cubin. Failures are never kept: the bug must happen in the run that claims it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from reproducers.observe import CannotTest

ARCH = "sm_90a"
USED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def lower(func: Any, configs: dict[str, Any], *, cached: bool) -> str:
    """CUDA source of a TileLang PrimFunc for ``ARCH`` under ``configs`` (pass configs, keys as text)."""
    import tilelang
    from tilelang import tvm

    named = {str(getattr(key, "value", key)): value for key, value in configs.items()}
    script = func.script(show_meta=True)
    kept = _kept("lowered", tilelang.__version__, ARCH, json.dumps(named, sort_keys=True), script) if cached else None
    if kept and kept.exists():
        return kept.read_text()
    target = tvm.target.Target({"kind": "cuda", "arch": ARCH})
    with tvm.transform.PassContext(opt_level=3, config=named), target:
        source = str(tilelang.lower(func, target=target).kernel_source)
    _keep(kept, source)
    return source


def nvcc(source: str) -> dict[str, int]:
    """{registers, stack, spill_stores, spill_loads} of the hungriest kernel in ``source``, as ptxas reports it."""
    tool = shutil.which("nvcc") or shutil.which("nvcc", path=f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin")
    if tool is None:
        raise CannotTest("nvcc is not on the path", "install the CUDA toolkit, or set CUDA_HOME")
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    kept = _kept("cubin", version, ARCH, source)
    if kept and kept.exists():
        return dict(json.loads(kept.read_text()))
    said = _compile(tool, source)
    frames = [tuple(map(int, row)) for row in USED.findall(said)]
    most = [max(column) for column in zip(*frames, strict=True)] or [0, 0, 0]
    registers = max(map(int, REGISTERS.findall(said)), default=0)
    used = dict(zip(("registers", "stack", "spill_stores", "spill_loads"), [registers, *most], strict=True))
    _keep(kept, json.dumps(used))
    return used


def _compile(tool: str, source: str) -> str:
    """ptxas's report on the cubin; RuntimeError with nvcc's first error when the source is rejected."""
    import tilelang

    root = Path(tilelang.__file__).parent
    includes = [f"-I{path}" for path in (root / "src", root / "3rdparty/cutlass/include") if path.is_dir()]
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        (Path(scratch) / "kernel.cu").write_text(source)
        options = ["-std=c++17", "-O3", "--use_fast_math", f"-arch={ARCH}", "-cubin", "-Xptxas=-v", "-DENABLE_BF16"]
        command = [tool, *options, *includes, "-o", "kernel.cubin", "kernel.cu"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"nvcc rejects the source with {len(errors)} errors: {(errors or ['?'])[0][:300]}")
    return done.stderr


def _kept(kind: str, *content: str) -> Path | None:
    """Where the artefact of this content is kept; None outside a runner, which names the folder."""
    folder = os.environ.get("TILELANG_CACHE_DIR")
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()
    return Path(folder) / f"patchlane-{kind}" / key if folder else None


def _keep(path: Path | None, text: str) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    scratch.write_text(text)
    scratch.replace(path)
