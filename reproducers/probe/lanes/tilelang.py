"""Compile TileLang functions without a GPU: to CUDA source, and with nvcc to a cubin for its resource use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from reproducers.probe.checks import CannotTest

ARCH = "sm_90a"
USED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def lower(func: Any, configs: dict[str, Any]) -> str:
    """CUDA source of a TileLang PrimFunc for ``ARCH`` under ``configs`` (pass configs, keys as text)."""
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": ARCH})
    with tvm.transform.PassContext(opt_level=3, config=named(configs)), target:
        return str(tilelang.lower(func, target=target).kernel_source)


def named(configs: dict[str, Any]) -> dict[str, Any]:
    """Pass configs by their names; keys may be members of ``tilelang.PassConfigKey``."""
    return {str(getattr(key, "value", key)): value for key, value in configs.items()}


def nvcc_path() -> str:
    """The nvcc on the path or of CUDA_HOME. Raises CannotTest if there is none."""
    tool = shutil.which("nvcc") or shutil.which("nvcc", path=f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin")
    if tool is None:
        raise CannotTest("nvcc is not on the path", "install the CUDA toolkit, or set CUDA_HOME")
    return tool


def nvcc(source: str) -> dict[str, int]:
    """{registers, stack, spill_stores, spill_loads} of the hungriest kernel in ``source``, as ptxas reports it."""
    report = _compile(nvcc_path(), source)
    frames = [tuple(map(int, row)) for row in USED.findall(report)]
    most = [max(column) for column in zip(*frames, strict=True)] or [0, 0, 0]
    registers = max(map(int, REGISTERS.findall(report)), default=0)
    return dict(zip(("registers", "stack", "spill_stores", "spill_loads"), [registers, *most], strict=True))


def _compile(tool: str, source: str) -> str:
    """ptxas's report on the cubin. Raises RuntimeError with nvcc's first error if it rejects the source."""
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
