"""Compile Triton kernels for sm_90a without a GPU: what they take of it, and the code of a launch."""

import re
import subprocess
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import create_function_from_signature

HOPPER = GPUTarget("cuda", 90, 32)


class Launches:
    """In place of a kernel: keeps the PTX that Triton would launch, with constants and alignments by its own rules."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.ptx: list[str] = []

    def __getitem__(self, grid: Any) -> Any:
        return self._compile

    def _compile(self, *arguments: Any, **options: Any) -> None:
        kernel, backend = self.kernel, make_backend(HOPPER)
        bound, specialized, rest = create_function_from_signature(kernel.signature, kernel.params, backend)(
            *arguments, **options
        )
        chosen, signature, constants, attributes = kernel._pack_args(backend, rest, bound, specialized, rest)
        kind = GluonASTSource if kernel.is_gluon() else ASTSource
        source = kind(kernel, signature, constants, attributes)
        self.ptx.append(triton.compile(source, target=HOPPER, options=chosen.__dict__).asm["ptx"])


def resources(kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, int]) -> dict[str, int]:
    """Matrix instructions, registers and the bytes that a thread spills; arguments without a type are "*fp32"."""
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if signature[name].startswith("*")
    }
    source = ASTSource(kernel, signature, places, aligned)
    ptx = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
    return taken(ptx)


def taken(ptx: str) -> dict[str, int]:
    """Matrix instructions of the code of one kernel, its registers and the bytes that a thread spills."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    return {"mma": len(re.findall(r"\b(?:mma\.sync|wgmma\.mma)", ptx)), "spilled": spilled, "registers": registers}
