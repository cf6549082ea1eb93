"""M²RNN: its kernel paths."""

from __future__ import annotations

from model.kinds.path import Part, Path
from model.kinds.run import gpu_or_interpreter, triton

KERNELS = {"M²RNN": r"m2rnn"}
PARTS = (
    Part(
        "m2rnn",
        "M²RNN",
        layers=True,
        paths=(
            Path("triton_whole", needs=(triton, gpu_or_interpreter), kernels=KERNELS),
            Path(
                "triton_kept",
                needs=(triton, gpu_or_interpreter),
                kernels=KERNELS,
                option="states kept until the backward pass: faster, with more memory",
            ),
            Path("torch"),
        ),
    ),
)
