"""DSA, sparse attention (DeepSeek-V3.2-Exp): MLA over the keys that a lightning indexer chooses."""

from __future__ import annotations

from dataclasses import dataclass

from model.kinds.kind import FP32, Frozen, Kernels, Products, Seen, Shapes, under
from model.kinds.mla import PART, VARIANT, Mla
from model.kinds.path import Code, Part, Path, Seam
from model.kinds.run import bf16, gpu, rows

SPARSE = Kernels(
    "sparse attention and its indexer",
    ("sparse MLA", "DSA main_kernel (sparse MLA forward, indexer loss)", "indexer and top-k"),
)
INDEXERS = "indexers"  # their row of tables


class Indexer(Frozen):
    """How it chooses the keys of a query, and the weight of its loss."""

    heads: int = 32
    head_dim: int = 64
    topk: int = 256
    loss_coeff: float = 1.0  # with 1e-3 its gradients are below AdamW's epsilon: docs/log.md


@dataclass(frozen=True)
class Dsa(Mla):
    """``computes``: it has an indexer; else it takes the keys that another layer's has chosen."""

    indexer: Indexer
    computes: bool = True

    name = "dsa"
    label = "DSA"
    symbol = "D"
    spec = "model.layers.attention.install:sparse"
    slot = "dsa_layer"
    inside = ("input_layernorm", "self_attention")
    groups = ("dsa", "indexer")
    matrices = Mla.matrices | {"linear_wq_b", "linear_wk", "linear_weights_proj"}
    names = (
        *Mla.names,
        ("self_attention.core_attention.indexer.linear_wq_b", "self_attn.indexer.wq_b"),
        ("self_attention.core_attention.indexer.linear_wk", "self_attn.indexer.wk"),
        ("self_attention.core_attention.indexer.linear_weights_proj", "self_attn.indexer.weights_proj"),
        ("self_attention.core_attention.indexer", "self_attn.indexer"),
    )

    def parts(self) -> dict[str, Shapes]:
        """MLA's; of the indexer query and key projections, LayerNorm on the key (weight and bias), weights of the
        heads."""
        if not self.computes:
            return super().parts()
        i, h = self.indexer, self.hidden
        found: Shapes = {
            "linear_wq_b.weight": (i.heads * i.head_dim, self.dims.q_lora_rank),
            "linear_wk.weight": (i.head_dim, h),
            "k_norm.weight": (i.head_dim,),
            "k_norm.bias": (i.head_dim,),
            "linear_weights_proj.weight": (i.heads, h),
        }
        return super().parts() | {INDEXERS: under("self_attention.core_attention.indexer.", found)}

    def products(self, seen: Seen) -> list[Products]:
        """The indexer's loss asks for attention's own scores over all keys, without a gradient."""
        i = self.indexer
        attention = [
            Products(PART, seen.tokens * self.projections()),
            Products(PART, self.scores(seen.keys(i.topk)), SPARSE),
        ]
        if not self.computes:
            return attention
        projections = 2 * (self.dims.q_lora_rank * i.heads * i.head_dim + self.hidden * (i.head_dim + i.heads))
        return [
            *attention,
            Products(INDEXERS, seen.tokens * projections),
            Products(INDEXERS, 2 * i.heads * i.head_dim * seen.keys(), SPARSE),
            Products(INDEXERS, 2 * self.heads * self.dims.qk_dim * seen.keys(), SPARSE, once=True),
        ]

    def kept(self) -> float:
        return super().kept() + FP32 * self.indexer.topk  # the indices

    def group(self, name: str) -> str:
        return "indexer" if ".indexer." in name else "dsa"


# Pack 02 changes the class itself. What holds with and without it is which heads have no key: ours has none of them.
SPARSE_KEPT = Seam(
    "sparse_kept",
    upstream=f"{VARIANT}.ops.sparse_mla:_valid_head_mask",
    sha256="b295a18db4bfe69002626f30d941a6f9a7f59eaca86bc1da623ee2d92e98497e",
    reason="the output is kept; upstream computes it again, and clears queries without a key by passes of their own",
    ours="upstream computes it again on purpose, as its comment says, to keep no memory: this spends memory for time",
)


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
                    # TileLang's, PyTorch's, and those of pack 12
                    "indexer and top-k": (
                        r"indexer|clean_logits|gatherTopK|radixFindKth|topk"
                        r"|^_(valid_keys|index_scores|attention_(lse|target)|kl|grad_[kq])_kernel"
                    ),
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
)
