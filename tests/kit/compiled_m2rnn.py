"""Run by test_m2rnn_triton in a process of its own: compile the kernels for sm_90a at nam56r's sizes, no GPU needed.

Argument: 16 or 32, the bits of the inputs. Prints JSON: for each kernel its matrix instructions, registers and the
bytes that a thread spills.
"""

import json
import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from model.layers.m2rnn import kernels

SIZES = {"N": 44, "K": 64, "V": 16, "S": 4, "R": 16, "C": 16, "CHUNK": 32}
TYPES = {"cu": "*i32", "order": "*i32", "documents": "i32", "tokens": "i32"}


def compiled(kernel, bits):
    constants = {**SIZES, "HALF": bits == 16}
    types = TYPES | dict.fromkeys(("q", "k", "v", "w", "dy"), "*bf16" if bits == 16 else "*fp32")
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constants.items()})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})


def resources(kernel, bits):
    ptx = compiled(kernel, bits).asm["ptx"]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(ptx)
        source.flush()
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", source.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", said))
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    return {"mma": len(re.findall(r"\bmma\.sync", ptx)), "spilled": spilled, "registers": registers}


KERNELS = (kernels.m2rnn_forward, kernels.m2rnn_backward)
print(json.dumps({kernel.__name__: resources(kernel, int(sys.argv[1])) for kernel in KERNELS}))
