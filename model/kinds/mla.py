"""MLA, multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), over all keys of a document so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from model.kinds.kind import BF16, Frozen, Kernels, Kind, Products, Seen, Shapes
from model.kinds.path import Part, Path
from model.kinds.run import Run, bf16, gpu

ATTENTION = Kernels("attention over all keys", ("attention",))
PART = "attention"  # the row of tables, sparse attention's too


class Dims(Frozen):
    """Ranks and channels a head; its RoPE."""

    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_dim: int = 64
    qk_rope_dim: int = 64
    v_dim: int = 64
    rope_base: int = 500_000

    @property
    def qk_dim(self) -> int:
        return self.qk_nope_dim + self.qk_rope_dim


@dataclass(frozen=True)
class Mla(Kind):
    """Like in Megatron's hybrid spec, there are no norms on the low-rank activations."""

    heads: int
    dims: Dims

    name = "mla"
    label = "MLA"
    symbol = "+"
    spec = "model.layers.attention.install:dense"
    slot = "mla_layer"
    inside = ("input_layernorm", "self_attention")
    groups: ClassVar[tuple[str, ...]] = ("mla",)
    has_logits = True
    matrices = frozenset(
        {"linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"}
    )
    names: ClassVar[tuple[tuple[str, str], ...]] = (
        ("self_attention.linear_q_down_proj", "self_attn.q_a_proj"),
        ("self_attention.q_layernorm", "self_attn.q_a_layernorm"),
        ("self_attention.linear_q_up_proj", "self_attn.q_b_proj"),
        ("self_attention.linear_q_proj", "self_attn.q_proj"),
        ("self_attention.linear_kv_down_proj", "self_attn.kv_a_proj_with_mqa"),
        ("self_attention.kv_layernorm", "self_attn.kv_a_layernorm"),
        ("self_attention.linear_kv_up_proj", "self_attn.kv_b_proj"),
        ("self_attention.linear_proj", "self_attn.o_proj"),
    )

    def parts(self) -> dict[str, Shapes]:
        """Low-rank query, joint low-rank key and value with the shared rotary key, output projection, the layer's
        norm."""
        a, h, heads = self.dims, self.hidden, self.heads
        found: Shapes = {
            "input_layernorm.weight": (h,),
            "self_attention.linear_q_down_proj.weight": (a.q_lora_rank, h),
            "self_attention.linear_q_up_proj.weight": (heads * a.qk_dim, a.q_lora_rank),
            "self_attention.linear_kv_down_proj.weight": (a.kv_lora_rank + a.qk_rope_dim, h),
            "self_attention.linear_kv_up_proj.weight": (heads * (a.qk_nope_dim + a.v_dim), a.kv_lora_rank),
            "self_attention.linear_proj.weight": (h, heads * a.v_dim),
        }
        return {PART: found}

    def products(self, seen: Seen) -> list[Products]:
        return [
            Products(PART, seen.tokens * self.projections()),
            Products(PART, self.scores(seen.keys()), ATTENTION),
        ]

    def projections(self) -> float:
        """FLOPs a token."""
        a, h = self.dims, self.hidden
        down = h * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim)
        up = a.q_lora_rank * self.heads * a.qk_dim + a.kv_lora_rank * self.heads * (a.qk_nope_dim + a.v_dim)
        return 2 * (down + up + self.heads * a.v_dim * h)

    def scores(self, keys: float) -> float:
        """FLOPs of scores and values over ``keys`` keys."""
        return 2 * self.heads * (self.dims.qk_dim + self.dims.v_dim) * keys

    def published(self, sequence: int) -> float:
        """As full multi-head attention, sparse or not."""
        return 4 * self.hidden * (2 * self.hidden + sequence / 2)

    def kept(self) -> float:
        a = self.dims
        heads = self.heads * (2 * a.qk_dim + 2 * a.v_dim + 1)
        return BF16 * (2 * self.hidden + a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim + heads)


VARIANT = "megatron.core.transformer.experimental_attention_variant"


def _eights(size: Any, run: Run) -> str | None:
    odd = [str(width) for width in (size.attention.qk_dim, size.attention.v_dim) if width % 8]
    return f"a head has {' and '.join(odd)} channels, no multiple of 8" if odd else None


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
)
