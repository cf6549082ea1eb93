"""From tokens a second to TFLOP/s and MFU."""

from __future__ import annotations

from dataclasses import dataclass

from model.definition import flops
from model.families.family import Family

# Dense bf16 tensor-core peak in TFLOP/s, NVIDIA data sheets (without sparsity); first match in the driver's name.
PEAKS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.4,
    "H200": 989.4,
    "GH200": 989.4,
    "H800": 989.4,
    "A100": 312.0,
    "A800": 312.0,
}


def peak_tflops(gpu: str | None) -> float | None:
    """Peak of the GPU by its name from the driver ("NVIDIA H200"); None for a CPU or a GPU not in the table."""
    return next((peak for name, peak in PEAKS.items() if gpu and name in gpu), None)


@dataclass(frozen=True)
class Rates:
    """A step's rates, in fields named like those of ``records.Train``."""

    tokens_per_s_per_gpu: float
    tflops_megatron: float
    tflops_built: float
    gpu: str | None
    mfu: float | None


def rates(size: Family, tokens: int, seconds: float, gpus: int, gpu: str | None, sequence: int | None = None) -> Rates:
    """The rates of ``tokens`` tokens in ``seconds`` over all ``gpus`` (ranks on a CPU, where ``gpu`` is None).

    Raises ValueError if ``seconds`` is not positive.
    """
    if seconds <= 0:
        raise ValueError(f"a step takes more than {seconds} s")
    speed = tokens / seconds / gpus
    built, peak = speed * flops.total(size, sequence) / 1e12, peak_tflops(gpu)
    mfu = built / peak if peak else None
    return Rates(speed, speed * flops.megatron(size, sequence) / 1e12, built, gpu, mfu)
