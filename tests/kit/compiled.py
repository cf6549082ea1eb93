"""Compile Triton kernels for sm_90a without a GPU, and say what they take of it."""

import re
import subprocess
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


def resources(kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, int]) -> dict[str, int]:
    """Matrix instructions, registers and the bytes that a thread spills; arguments without a type are "*fp32"."""
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
    }
    source = ASTSource(kernel, signature, places, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    return {"mma": len(re.findall(r"\b(?:mma\.sync|wgmma\.mma)", ptx)), "spilled": spilled, "registers": registers}
