"""Run Triton kernels on a CPU under Triton's own interpreter, filling what the stock interpreter lacks.

Known limits: bf16 is kept as uint16 by the interpreter, so kernels must run in fp32; triton 3.6 needs numpy < 2.4.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from typing import Any

from reproducers.probe.checks import CannotTest


def interpret_triton() -> None:
    """Switch the interpreter on; call before any module with Triton kernels is imported.

    Raises CannotTest where it would not work, ModuleNotFoundError without triton.
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise CannotTest("triton was imported before its interpreter was switched on")
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy
    import triton
    import triton.runtime.interpreter as interpreter

    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4) and triton.__version__ < "3.7":
        wrong = f"triton {triton.__version__}'s interpreter needs numpy < 2.4, found {numpy.__version__}"
        raise CannotTest(wrong, "pip install 'numpy<2.4'")
    _float_scalars(interpreter)
    _libdevice(interpreter)
    _without_a_driver()


def _float_scalars(interpreter: Any) -> None:
    """Python floats become fp32 scalars as on a GPU; the stock interpreter hands kernels a raw float."""
    import numpy as np
    import triton.language as tl

    original = interpreter._implicit_cvt

    def convert(value: Any) -> Any:
        if not isinstance(value, float):
            return original(value)
        handle = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = convert


def _libdevice(interpreter: Any) -> None:
    """Give the libdevice stubs numpy implementations, computed in fp32."""
    import numpy as np
    import triton.language as tl
    import triton.language.extra.cuda.libdevice as cuda_libdevice
    from triton.language.extra import libdevice

    functions: dict[str, Any] = {
        **{name: getattr(np, name) for name in ("tanh", "exp", "log", "log1p", "expm1")},
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "erf": np.vectorize(math.erf, otypes=[np.float32]),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    }

    def elementwise(function: Any) -> Any:
        def apply(value: Any) -> Any:
            if not hasattr(value, "handle"):
                return float(function(np.float32(value)))
            data = value.handle.data
            handle = interpreter.TensorHandle(function(data.astype(np.float32)).astype(data.dtype), value.handle.dtype)
            return tl.tensor(handle, value.type)

        return apply

    for name in functions:
        for module in (libdevice, cuda_libdevice):
            setattr(module, name, elementwise(functions[name]))


def _without_a_driver() -> None:
    """Take each kernel's first configuration, for all compute the same; say yes to wrappers that ask for CUDA."""
    import torch
    from triton.runtime.autotuner import Autotuner

    Autotuner.run = lambda self, *args, **kwargs: self.fn.run(*args, **{**kwargs, **self.configs[0].kwargs})
    torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment,misc,method-assign]
    torch.cuda.device = lambda *a, **k: contextlib.nullcontext()  # type: ignore[misc,assignment]
