"""The part of the model that a GPU kernel serves, by the kernel's name: those of kernel paths, and all others.

TileLang appends ``_kernel`` to a kernel's name. What a path calls its kernels stands with it (``model/kinds``).
"""

from __future__ import annotations

import functools
import re

from model.kinds import catalogue

# Kernels of kernel paths have labels of their own, or are among those of a general one.
GENERAL: dict[str, str] = {
    "NCCL all-reduce": r"nccl.*all_?reduce",
    "NCCL all-gather": r"nccl.*all_?gather",
    "NCCL reduce-scatter": r"nccl.*reduce_?scatter",
    "NCCL all-to-all, send and receive": r"nccl.*(send_?recv|all_?to_?all)",
    "NCCL broadcast and other": r"nccl",
    "memcpy": r"^memcpy",
    "memset": r"^memset",
    "cross entropy": r"cross_?entropy|nll_loss|log_?softmax",
    "optimizer": r"adam|multi_tensor_apply|foreach|l2norm|clip_grad",
    "grouped GEMM": r"group.*gemm|gemm.*group|grouped_mm|GroupProblemShape",
    "attention": r"flash|fmha|sdpa|attention|softmax",
    "GEMM": r"nvjet|gemm|cutlass|cublas|gemv|splitK|wgrad|matmul",
    "convolution": r"conv(1d|2d|olution)|depthwise",
    "norm": r"norm(?!al)|GammaBeta",
    "reduction": r"reduce_kernel|reduction|_sum_|cumsum|scan",
    "routing, sorting and indexing": (
        r"permut|sort|row_id_map|moe_aux|scatter|gather|index|embedding|multihot|histogram|nonzero"
        r"|masked_(select|scatter)"
    ),
    "elementwise": (
        r"elementwise|copy_kernel|fill|cast|amax_kernel|add_used|CatArray|triton_poi|unrolled|gelu|transpose"
        r"|rotary|rotate_kernel|key_value_kernel"
    ),
}


def _rules() -> dict[str, str]:
    """{label: pattern}, first match wins: labels of paths stand before the general ones that they contain."""
    own: dict[str, list[str]] = {}
    for path in catalogue.paths().values():
        for label, pattern in path.kernels.items():
            if pattern not in own.setdefault(label, []):
                own[label].append(pattern)
    special = {label: "|".join(patterns) for label, patterns in own.items() if label not in GENERAL}
    return special | {label: "|".join([*own.get(label, []), pattern]) for label, pattern in GENERAL.items()}


RULES = _rules()
_COMPILED = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in RULES.items()}
OTHER = "other"
COMMUNICATION = "NCCL"


@functools.cache
def kind(name: str) -> str:
    """The kind of the kernel with this demangled name; "other" if no rule matches."""
    return next((kind for kind, pattern in _COMPILED.items() if pattern.search(name)), OTHER)
