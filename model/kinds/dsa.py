"""Sparse attention and its indexer (DSA): their kernel paths."""

from __future__ import annotations

from typing import Any

from model.kinds.mla import VARIANT
from model.kinds.path import Code, Part, Path, Seam
from model.kinds.run import Run, bf16, gpu, gpu_bf16, gpu_or_interpreter, rows, triton

LONGEST = 8192  # keys of a row that the indexer's kernels hold in registers
INDEXER_ROWS = Seam(
    "indexer_rows",
    upstream=f"{VARIANT}.dsa:DSAttention.forward.compute_indexer_loss_with_reference_path",
    sha256="5c7a6bf1620edbc89f013bbdd7eb7c2537bae942c44a16f5c867850c72a6e955",
    reason="a query is scored against every key of the packed stream: of R rows a row at a time is an Rth of the work",
)
# Pack 12 makes the functions that are copied. What holds without it too is the divergence, of which ours is a kernel.
INDEXER_KERNELS = Seam(
    "indexer_kernels",
    upstream=f"{VARIANT}.dsa_indexer_loss:_indexer_kl_terms",
    sha256="7d78bd86a2361f224b954436100b9616ba2f89760e6b0218dfad7c2750f4182d",
    reason="pack 12's kernels, told the bounds of their tiles: its loss finds these by eleven operators, twice a row",
)
# Pack 02 changes the class itself. What holds with and without it is which heads have no key: ours has none of them.
SPARSE_KEPT = Seam(
    "sparse_kept",
    upstream=f"{VARIANT}.ops.sparse_mla:_valid_head_mask",
    sha256="b295a18db4bfe69002626f30d941a6f9a7f59eaca86bc1da623ee2d92e98497e",
    reason="the output is kept; upstream computes it again, and clears queries without a key by passes of their own",
)


def _short_rows(size: Any, run: Run) -> str | None:
    long = run.row is not None and run.row > LONGEST
    return f"rows of {run.row} tokens are longer than {LONGEST}" if long else None


PARTS = (
    Part(
        "dsa",
        "DSA",
        layers=True,
        paths=(
            Path(
                "tilelang",
                needs=(gpu, bf16),
                code=Code(
                    f"{VARIANT}.ops.tilelang_dsa:run_fused_absorbed_sparse_attention", "fused_sparse_mla_absorbed"
                ),
                settings={"dsa_kernel_backend": "tilelang"},
                kernels={
                    "sparse MLA": r"sparse_mla|^(pre|post)process_kernel",
                    # megatron-core 0.19.0 calls both its sparse-MLA forward and its indexer-loss kernels ``main``
                    "DSA main_kernel (sparse MLA forward, indexer loss)": r"^main_kernel",
                    "indexer and top-k": r"indexer|clean_logits|gatherTopK|radixFindKth|topk",
                },
            ),
            Path("megatron"),
        ),
    ),
    Part(
        "sparse",
        "sparse attention's output",
        (
            Path(
                "kept",
                needs=(gpu, bf16, rows),
                code=Code(SPARSE_KEPT.upstream, "kv_group"),
                seams=(SPARSE_KEPT,),
                graphs=False,
            ),
            Path("again"),
        ),
    ),
    Part(
        "indexer",
        "indexer's loss",
        (
            Path(
                "triton",
                needs=(triton, gpu_or_interpreter, gpu_bf16, rows, _short_rows),
                code=Code(f"{VARIANT}.ops.triton_indexer:attention_target", "_key_bounds"),  # of pack 12
                seams=(INDEXER_ROWS, INDEXER_KERNELS),
                kernels={"indexer and top-k": r"^_(index_scores|attention_(lse|target)|grad_[kq])"},
                graphs=False,
            ),
            Path("rows", needs=(rows,), seams=(INDEXER_ROWS,)),
            Path("stream"),
        ),
    ),
)
