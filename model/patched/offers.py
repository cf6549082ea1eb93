"""Paths that only some stacks' code can run, by the code of upstream, or of a pack, that each rests on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from model.patched import seams

# {"kind=path": ("module:qualified name", a word in its code)}: pack 09's function, what pack 11 gives HybridModel, what
# runs pack 12's kernels, the method of pack 39, and TileLang's kernels for sparse attention, which branch dev has not
PER_TOKEN = "liger_kernel.ops.fused_linear_cross_entropy:fused_linear_cross_entropy_per_token_backward"
VARIANT = "megatron.core.transformer.experimental_attention_variant"
NEEDED = {
    "loss=liger_once": (PER_TOKEN, "grad"),
    "loss=linear": ("megatron.core.models.hybrid.hybrid_model:HybridModel.__init__", "LinearCrossEntropyModule"),
    "indexer=triton": (f"{VARIANT}.ops.triton_indexer:attention_target", "_key_bounds"),
    "dsa=tilelang": (f"{VARIANT}.ops.tilelang_dsa:run_fused_absorbed_sparse_attention", "fused_sparse_mla_absorbed"),
    "sparse=kept": (seams.SPARSE_KEPT.upstream, "kv_group"),
    "balance=triton": ("megatron.core.transformer.moe.router:TopKRouter._apply_packed_seq_aux_loss", "cu_seqlens"),
}


def lacking(roots: Iterable[str | Path]) -> dict[str, str]:
    """{"kind=path": why it cannot run} for the code in ``roots``, which is not imported."""
    places = list(roots)
    return {
        path: f"with its patches the stack's {name.partition('.')[0]} has no {name.partition(':')[2]} with {word}"
        for path, (name, word) in NEEDED.items()
        if word not in (seams.source(name, places) or "")
    }
