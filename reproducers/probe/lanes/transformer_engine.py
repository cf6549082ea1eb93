"""Import Transformer Engine from a need's tree: the real thing on a GPU, without its C++ extension elsewhere.

On the cpu lane every Python module of Transformer Engine is the real one, package ``__init__`` included. Stand-ins
replace the compiled module ``transformer_engine_torch`` (quantize and dequantize in torch, every other name an empty
class that does nothing), the loading of shared objects, and ONNX, which only its exporter uses. So the tensor classes
and their dispatch can be tested here, but no kernel and no module's forward.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import importlib.util
import os
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from reproducers.probe.checks import CannotTest

SHIM = "libcublaslt_shim.so"  # made by build_extension from cublaslt_shim.c
ABSENT = "cublasLtGroupedMatrixLayoutInit_internal"  # an older cuBLAS of torch lacks it


class DType(enum.IntEnum):
    """The members that the C++ extension exports, with the values of transformer_engine.h."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


class Backend(enum.IntEnum):
    """The attention backends it exports; Transformer Engine compares the names with its own."""

    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


def import_transformer_engine(device: str) -> types.ModuleType:
    """``transformer_engine.pytorch`` for a lane. Raises CannotTest if it, a dependency or its GPU is missing."""
    spec = importlib.util.find_spec("transformer_engine")
    if spec is None or spec.origin is None:
        raise CannotTest("transformer_engine is not on the path", "pass --needs DIR with its sources")
    try:
        if device == "cpu":
            return _without_extension()
        return _real(Path(spec.origin).parent)
    except ModuleNotFoundError as error:
        raise CannotTest(f"transformer_engine needs {error.name}, which is not installed") from error


def _real(package: Path) -> types.ModuleType:
    """Import the built package; the shim must be in the process before the core library that lacks its symbol."""
    import torch

    if not torch.cuda.is_available():
        raise CannotTest("lane cuda was asked for, torch sees no GPU")
    if not list(package.glob("wheel_lib/transformer_engine_torch*.so")):
        remedy = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
        raise CannotTest("transformer_engine_torch does not lie beside transformer_engine", remedy)
    if shim := preloaded(package.parent):
        ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    for name, value in cuda_headers().items():
        os.environ.setdefault(name, value)
    return importlib.import_module("transformer_engine.pytorch")


def preloaded(need: Path) -> Path | None:
    """The shared object that a process has to load before the core library in ``need``, if torch's cuBLAS wants it."""
    shim = need / SHIM
    if not shim.is_file():
        return None
    import torch

    return None if _cublas_has(ABSENT, torch.version.cuda) else shim


def cuda_headers() -> dict[str, str]:
    """Where kernels that are compiled as it runs find CUDA's headers, as a variable; none where there are none."""
    headers = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    return {"NVTE_CUDA_INCLUDE_DIR": str(headers)} if (headers / "cuda_runtime.h").is_file() else {}


def _cublas_has(symbol: str, cuda: str | None) -> bool:
    """Whether torch's own cuBLAS, by now in the process, defines ``symbol``."""
    try:
        return hasattr(ctypes.CDLL(f"libcublasLt.so.{(cuda or '').split('.')[0]}"), symbol)
    except OSError:
        return False


def _without_extension() -> types.ModuleType:
    import torch

    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # upstream's own switch: no check of the installation, no shared object
    sys.modules["transformer_engine_torch"] = _extension()
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _empty(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first import says that the extension is missing
        common = importlib.import_module("transformer_engine.common")
        common.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]
        return importlib.import_module("transformer_engine.pytorch")


def _extension() -> types.ModuleType:
    """A stand-in for the compiled module: casts to and from FP8 in torch, on whole tensors with one scale."""
    import torch

    eight = {DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2}
    wide = {DType.kFloat32: torch.float32, DType.kFloat16: torch.float16, DType.kBFloat16: torch.bfloat16}

    def quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Any = None) -> Any:
        data = (tensor.float() * quantizer.scale).to(eight[DType(int(quantizer.dtype))]).view(torch.uint8)
        if output is None:
            return quantizer.create_tensor_from_data(data, tensor.dtype)
        output._data.copy_(data)
        output._scale_inv.copy_(1 / quantizer.scale)
        return output

    def dequantize(tensor: Any, dtype: Any) -> Any:
        values = tensor._data.view(eight[DType(int(tensor._fp8_dtype))]).float() * tensor._scale_inv
        return values.to(wide[DType(int(dtype))])

    module: Any = _empty("transformer_engine_torch")
    module.DType, module.quantize, module.dequantize = DType, quantize, dequantize
    module.NVTE_Fused_Attn_Backend = Backend
    Backend.NVTE_F16_max512_seqlen = 0  # type: ignore[attr-defined]  # gone in later releases, so no member
    return module  # type: ignore[no-any-return]


class _Names(type):
    """Any attribute of an empty class is that class again, and as a number it is 0."""

    def __int__(cls) -> int:
        return 0

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Absent(metaclass=_Names):
    """The value of every name of an empty module: may be named, subclassed and constructed; does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


def _empty(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)

    def attribute(key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {key!r}")
        return Absent

    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module
