"""The part of the model that a GPU kernel serves, by the kernel's name.

TileLang appends ``_kernel`` to a kernel's name; megatron-core 0.19.0 calls both its sparse-MLA forward and its
indexer-loss kernels ``main``; pack 12 calls its Triton kernels ``_attention_lse_kernel``, ``_grad_k_kernel`` and such.
``mimo_*`` are those of ``model/layers/mamba3/kernels.py``, ``balance_*`` those of ``model/layers/experts/balance.py``,
``indexer_*`` those of ``model/layers/attention/divergence.py``.
"""

from __future__ import annotations

import functools
import re

# First match wins: the special names stand before the general ones they contain.
RULES: tuple[tuple[str, str], ...] = (
    ("Mamba-3 MIMO bwd_bwd", r"mamba_mimo_bwd_bwd"),
    ("Mamba-3 MIMO bwd_fwd", r"mamba_mimo_bwd_fwd"),
    ("Mamba-3 MIMO fwd", r"mamba_mimo_fwd|^mimo_forward"),
    ("Mamba-3 MIMO backward by blocks", r"^mimo_(turned|states|carry|backward|gates|fold|sums|weights)"),
    ("Mamba-3 other", r"mamba3_|dacs_segsum|dadt_cumsum|dtrap_ddt|segsum_dadt|angle_dt_"),
    ("M²RNN", r"m2rnn"),
    ("NCCL all-reduce", r"nccl.*all_?reduce"),
    ("NCCL all-gather", r"nccl.*all_?gather"),
    ("NCCL reduce-scatter", r"nccl.*reduce_?scatter"),
    ("NCCL all-to-all, send and receive", r"nccl.*(send_?recv|all_?to_?all)"),
    ("NCCL broadcast and other", r"nccl"),
    ("memcpy", r"^memcpy"),
    ("memset", r"^memset"),
    ("sparse MLA", r"sparse_mla|^(pre|post)process_kernel"),
    ("DSA main_kernel (sparse MLA forward, indexer loss)", r"^main_kernel"),
    (
        "indexer and top-k",
        r"indexer|clean_logits|gatherTopK|radixFindKth|topk|^_(index_scores|attention_(lse|target)|grad_[kq])",
    ),
    ("cross entropy", r"cross_?entropy|nll_loss|log_?softmax"),
    ("optimizer", r"adam|multi_tensor_apply|foreach|l2norm|clip_grad"),
    ("grouped GEMM", r"group.*gemm|gemm.*group|grouped_mm|GroupProblemShape"),
    ("attention", r"flash|fmha|sdpa|attention|softmax"),
    ("GEMM", r"nvjet|gemm|cutlass|cublas|gemv|splitK|wgrad|matmul"),
    ("convolution", r"conv(1d|2d|olution)|depthwise"),
    ("norm", r"norm(?!al)|GammaBeta"),
    ("reduction", r"reduce_kernel|reduction|_sum_|cumsum|scan"),
    (
        "routing, sorting and indexing",
        r"permut|sort|row_id_map|moe_aux|scatter|gather|index|embedding|multihot|histogram|nonzero|masked_(select|scatter)"
        r"|^balance_",
    ),
    (
        "elementwise",
        r"elementwise|copy_kernel|fill|cast|amax_kernel|add_used|CatArray|triton_poi|unrolled|gelu|transpose|rotary",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in RULES)
OTHER = "other"
COMMUNICATION = "NCCL"


@functools.cache
def kind(name: str) -> str:
    """The kind of the kernel with this demangled name; "other" if no rule matches."""
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), OTHER)
