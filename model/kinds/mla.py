"""Multi-head latent attention: its kernel paths, and those of what sparse attention shares with it."""

from __future__ import annotations

from typing import Any

from model.kinds.path import Part, Path, Seam
from model.kinds.run import Run, bf16, gpu, gpu_or_interpreter, triton

ROPE = "megatron.core.models.common.embeddings.rope_utils"
VARIANT = "megatron.core.transformer.experimental_attention_variant"
ROTARY = Seam(
    "rotary",
    upstream=f"{ROPE}:_apply_rotary_pos_emb_bshd",
    sha256="4a54b66e47ae8722278401fdd948138540678e67e2331067685ef94cdc801282",
    reason="one kernel each way in place of some ten operators; Megatron's own fusion refuses DSA",
    also=("1f6ee667c5ab9ec294bbb9f3dbf01b23df7b2ee2d2679fbde66a2435a72c59c6",),
)
ROTARY_TABLES = Seam(
    "rotary_tables",
    upstream=f"{ROPE}:apply_rotary_pos_emb",  # calls what is replaced
    sha256="6ebc796813c1ef91d786eef53def01cea8a613d60185be166b6d4f5f232a49ba",
    reason="the angles of a packed batch's tokens are the same in every layer, and found once a forward",
    also=(
        "28168151fcc6caff479c79dbac8da08e89673f1dda2a3731d12d59171d0cf20d",
        "eeb2a5012e07f1d5e538ca394b9726a921823482e54bda241096ffcd0a44e0b9",
    ),
)
FUSED_MLA = Seam(
    "fused_mla",
    upstream="megatron.core.transformer.multi_latent_attention:MLASelfAttention.get_query_key_value_tensors",
    sha256="e19fa46a2a0b1b231d4725127a3bc4c0e6bfec7004492ae2293b890a38709d92",
    reason="Megatron's fused kernels, which write keys and values whole and which it refuses beside DSA; own queries",
    also=("c7c142edae56f6510f3073cd976521642fc9ceb8d9727561d95d1da38e402f19",),
)
WHOLE_ABSORBED = Seam(
    "whole_absorbed",
    upstream=f"{VARIANT}.absorbed_mla:AbsorbedMLASelfAttention.get_query_key_value_tensors",
    sha256="dcbca47bedf6e6688da04545adb1d9daac8599c402c7d1c9d9a7c5a128730aa3",
    reason="the product and the turned channels are written into one tensor, and their gradients: nothing is joined",
    also=("07cad94bb16d04eea30985c9b2ad281583f6de337c47cc5d29b0b06c109fc9fa",),
)
WHOLE_INDEXER = Seam(
    "whole_indexer",
    upstream=f"{VARIANT}.dsa:DSAIndexer._apply_rope",
    sha256="b7d5b78e414f4863bfb81bf419ceee2ad9d18ad2a3644d3ebf6bb79250e7832e",
    reason="all channels of a head turn: upstream joins them with none, and copies their gradients likewise",
    also=("81a1966682c85a9e1126f293cf96b20b056ca257209e3da2784d247e918a4964",),
)


def _eights(size: Any, run: Run) -> str | None:
    odd = [str(width) for width in (size.attention.qk_dim, size.attention.v_dim) if width % 8]
    return f"a head has {' and '.join(odd)} channels, no multiple of 8" if odd else None


def _powers_of_two(size: Any, run: Run) -> str | None:
    a = size.attention
    widths = {"qk_nope_dim": a.qk_nope_dim, "qk_rope_dim": a.qk_rope_dim, "v_dim": a.v_dim}
    odd = [f"{name} {width}" for name, width in widths.items() if width & (width - 1) or width < 4]
    return f"{' and '.join(odd)}: no power of two from 4" if odd else None


PARTS = (
    Part(
        "mla",
        "MLA",
        layers=True,
        paths=(
            Path("cudnn", needs=(gpu, bf16, _eights), kernels={"attention": r"cudnn.*sdpa|flash_(fprop|bprop)"}),
            Path("torch"),
        ),
    ),
    # before the rotary embedding, whose layers then share what this one gives them
    Part(
        "qkv",
        "queries, keys and values",
        (
            Path(
                "whole",
                needs=(triton, gpu_or_interpreter, _powers_of_two),
                seams=(FUSED_MLA, WHOLE_ABSORBED, WHOLE_INDEXER),
                install="model.layers.attention.whole:enable",
                graphs=False,
            ),
            Path("joined"),
        ),
    ),
    Part(
        "rope",
        "rotary embedding",
        (
            Path(
                "triton",
                needs=(triton, gpu_or_interpreter),
                seams=(ROTARY, ROTARY_TABLES),
                prepare="model.layers.attention.tables:stand_in",
                install="model.layers.attention.tables:share",
                kernels={"elementwise": r"rotary"},
            ),
            Path("megatron"),
        ),
    ),
)
