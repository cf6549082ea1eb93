"""Attention with one latent for keys and values: over a window, and over compressed keys that an indexer chooses (CSA)
or all of them (HCA)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from model.kinds.deepseek_v4.hyper import Wrapped, wrapped_makers, wrapped_names
from model.kinds.kind import BF16, FP32, Frozen, Kernels, Products, Seen, Shapes, under
from model.kinds.path import Need, Part, Path
from model.kinds.run import Run, bf16, gpu, triton

PART, COMPRESSORS, INDEXERS = "attention", "compressors", "indexers"  # rows of tables
INSIDE = "self_attention.core_attention"
AROUND = "self_attention_hyper_connection"
# (part of a parameter's name, its group), the first that fits
TRITON = {
    "V4 attention": r"^(attend|query_gradients|key_gradients|mark|deltas|turned)",
    "V4 indexer": r"^(scored|best|among|entry_gradients)",
    "V4 compressors": r"^pooled",
}
ATTEND = Kernels("attention over window and entries", ("V4 attention",))
INDEX = Kernels("indexer", ("V4 indexer",))
INNER_GROUPS = (("_hyper_connection.", "mhc"), (".indexer.", "indexer"), (".compressor.", "compressor"))


class Yarn(Frozen):
    """YaRN's scaling of RoPE (arXiv 2309.00071), of layers with compressed keys alone, and without a factor of
    attention."""

    factor: float = 16.0
    original_positions: int = 65_536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


class Dims(Frozen):
    """Of every attention layer. ``window``: keys with the query's own; ``o_groups``: of heads, each of which
    ``o_lora_rank`` channels are made of; ``rope_theta`` where nothing is compressed, ``compress_rope_theta`` elsewhere.
    ``csa_ratio`` and ``hca_ratio``: tokens of a compressed key.
    """

    q_lora_rank: int = 1024
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    o_groups: int = 8
    o_lora_rank: int = 1024
    window: int = 128
    csa_ratio: int = 4
    hca_ratio: int = 128
    rope_theta: float = 10_000.0
    compress_rope_theta: float = 160_000.0
    yarn: Yarn = Yarn()


class Indexer(Frozen):
    """How CSA chooses the compressed keys of a query, and the weight of its loss."""

    heads: int = 64
    head_dim: int = 128
    topk: int = 512
    loss_coeff: float = 1e-2


def compressor(hidden: int, width: int, ratio: int, halves: int) -> Shapes:
    """Values and gates of each token, ``halves`` times ``width`` wide, a bias of the gates for each place in a window
    of ``ratio`` tokens, the norm of compressed keys."""
    return {
        "linear_wkv.weight": (halves * width, hidden),
        "linear_wgate.weight": (halves * width, hidden),
        "ape": (ratio, halves * width),
        "norm.weight": (width,),
    }


def compressor_names(ours: str, theirs: str) -> tuple[tuple[str, str], ...]:
    """Names of the compressor ``ours`` in a checkpoint and, as ``theirs``, in transformers."""
    pairs = {"linear_wkv": "kv_proj", "linear_wgate": "gate_proj", "ape": "position_bias", "norm": "kv_norm"}
    return tuple((f"{ours}.{one}", f"{theirs}.{other}") for one, other in pairs.items())


def compressor_makers(theirs: str, makers: str) -> tuple[tuple[str, str], ...]:
    """Names of the compressor ``theirs`` in transformers and, as ``makers``, in DeepSeek's files."""
    pairs = {"kv_proj": "wkv", "gate_proj": "wgate", "position_bias": "ape", "kv_norm": "norm"}
    return tuple((f"{theirs}.{one}", f"{makers}.{other}") for one, other in pairs.items())


@dataclass(frozen=True)
class Attention(Wrapped):
    """What all three kinds have; a query sees ``dims.window`` keys and no compressed one."""

    heads: int
    dims: Dims

    around = AROUND
    inside = ("input_layernorm", "self_attention")
    has_logits = True
    matrices = frozenset(
        {
            "linear_q_down_proj",
            "linear_q_up_proj",
            "linear_kv_proj",
            "linear_o_group_proj",
            "linear_proj",
            "mapping_proj",
        }
    )
    names: ClassVar[tuple[tuple[str, str], ...]] = (
        *wrapped_names(AROUND, "attn_hc"),
        ("self_attention.linear_q_down_proj", "self_attn.q_a_proj"),
        ("self_attention.q_layernorm", "self_attn.q_a_norm"),
        ("self_attention.linear_q_up_proj", "self_attn.q_b_proj"),
        ("self_attention.linear_kv_proj", "self_attn.kv_proj"),
        ("self_attention.kv_layernorm", "self_attn.kv_norm"),
        ("self_attention.linear_o_group_proj", "self_attn.o_a_proj"),
        ("self_attention.linear_proj", "self_attn.o_b_proj"),
        (f"{INSIDE}.attn_sink", "self_attn.sinks"),
    )
    makers: ClassVar[tuple[tuple[str, str], ...]] = (
        *wrapped_makers("attn_hc", "hc_attn"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_a_proj", "attn.wq_a"),
        ("self_attn.q_a_norm", "attn.q_norm"),
        ("self_attn.q_b_proj", "attn.wq_b"),
        ("self_attn.kv_proj", "attn.wkv"),
        ("self_attn.kv_norm", "attn.kv_norm"),
        ("self_attn.o_a_proj", "attn.wo_a"),
        ("self_attn.o_b_proj", "attn.wo_b"),
        ("self_attn.sinks", "attn.attn_sink"),
    )

    @property
    def channels(self) -> int:
        """Of all heads."""
        return self.heads * self.dims.head_dim

    def parts(self) -> dict[str, Shapes]:
        """Low-rank query with a norm, one latent with a norm, the output by groups and then of all, a sink a head."""
        a, h = self.dims, self.hidden
        found: Shapes = {
            "input_layernorm.weight": (h,),
            "self_attention.linear_q_down_proj.weight": (a.q_lora_rank, h),
            "self_attention.q_layernorm.weight": (a.q_lora_rank,),
            "self_attention.linear_q_up_proj.weight": (self.channels, a.q_lora_rank),
            "self_attention.linear_kv_proj.weight": (a.head_dim, h),
            "self_attention.kv_layernorm.weight": (a.head_dim,),
            "self_attention.linear_o_group_proj.weight": (a.o_groups * a.o_lora_rank, self.channels // a.o_groups),
            "self_attention.linear_proj.weight": (h, a.o_groups * a.o_lora_rank),
            f"{INSIDE}.attn_sink": (self.heads,),
        }
        return {PART: found, **self.around_parts()}

    def compressed(self, seen: Seen) -> float:
        """Compressed keys of all queries, summed."""
        return 0

    def products(self, seen: Seen) -> list[Products]:
        """Projections; scores and values of the keys that a query has."""
        a, h = self.dims, self.hidden
        lines = h * (a.q_lora_rank + a.head_dim) + a.q_lora_rank * self.channels
        lines += self.channels * a.o_lora_rank + a.o_groups * a.o_lora_rank * h
        keys = seen.windows(1, a.window) + self.compressed(seen)
        return [
            Products(PART, seen.tokens * 2 * lines),
            Products(PART, 4 * self.channels * keys, ATTEND),
            *self.around_products(seen),
        ]

    def published(self, sequence: int) -> float:
        """A window of keys for each query, the first ones too."""
        a, h = self.dims, self.hidden
        lines = a.q_lora_rank * (h + self.channels + 1) + a.head_dim * (h + 1)
        lines += self.channels * a.o_lora_rank + a.o_groups * a.o_lora_rank * h
        return 2 * (lines + 2 * self.channels * a.window)

    def kept(self) -> float:
        """The normed input; query and latent before and after their norms, attention's output before and after its
        RoPE, the groups' outputs; the logarithms of the softmax's sums."""
        a = self.dims
        channels = self.hidden + 2 * a.q_lora_rank + 4 * self.channels + 2 * a.head_dim + a.o_groups * a.o_lora_rank
        return self.around_kept() + BF16 * channels + FP32 * self.heads

    def normed(self) -> int:
        """The input, the low-rank query, each head's query, the latent."""
        return self.hidden + self.dims.q_lora_rank + self.channels + self.dims.head_dim

    def group(self, name: str) -> str:
        return next((group for part, group in INNER_GROUPS if part in name), self.name)


class Sliding(Attention):
    """Over a window alone."""

    name = "sliding"
    label = "sliding window"
    symbol = "W"
    spec = "model.layers.deepseek_v4.hybrid.install:sliding"
    slot = "window_layer"
    groups = ("sliding", "mhc")


@dataclass(frozen=True)
class Compressed(Attention):
    """Over a window, and over keys that are each a gated sum of a window of tokens."""

    halves: ClassVar[int]  # 2 where a compressed key is of its own window and the one before it
    matrices = Attention.matrices | {"linear_wkv", "linear_wgate"}
    names = (*Attention.names, *compressor_names(f"{INSIDE}.compressor", "self_attn.compressor"))
    makers = (*Attention.makers, *compressor_makers("self_attn.compressor", "attn.compressor"))

    @property
    @abstractmethod
    def ratio(self) -> int:
        """Tokens of a compressed key."""

    def parts(self) -> dict[str, Shapes]:
        found = compressor(self.hidden, self.dims.head_dim, self.ratio, self.halves)
        return super().parts() | {COMPRESSORS: under(f"{INSIDE}.compressor.", found)}

    def compressed(self, seen: Seen) -> float:
        return seen.windows(self.ratio)

    def products(self, seen: Seen) -> list[Products]:
        lines = 2 * self.hidden * self.halves * self.dims.head_dim
        return [*super().products(seen), Products(COMPRESSORS, seen.tokens * 2 * lines)]

    def published(self, sequence: int) -> float:
        lines = 2 * self.hidden * self.halves * self.dims.head_dim
        return super().published(sequence) + 2 * (lines + 2 * self.channels * self.published_keys(sequence))

    def published_keys(self, sequence: int) -> float:
        """Compressed keys of a query."""
        return sequence / (2 * self.ratio)

    def kept(self) -> float:
        """Values and gates of all windows, and the keys before and after their norm."""
        return super().kept() + BF16 * self.dims.head_dim * (2 * self.halves + 2 / self.ratio)


class Hca(Compressed):
    """Heavily compressed attention: over all compressed keys."""

    name = "hca"
    label = "HCA"
    symbol = "H"
    spec = "model.layers.deepseek_v4.hybrid.install:hca"
    slot = "hca_layer"
    groups = ("hca", "compressor", "mhc")
    halves = 1

    @property
    def ratio(self) -> int:
        return self.dims.hca_ratio


@dataclass(frozen=True)
class Csa(Compressed):
    """Compressed sparse attention: over the compressed keys that an indexer chooses."""

    indexer: Indexer

    name = "csa"
    label = "CSA"
    symbol = "C"
    spec = "model.layers.deepseek_v4.hybrid.install:csa"
    slot = "csa_layer"
    groups = ("csa", "compressor", "indexer", "mhc")
    matrices = Compressed.matrices | {"linear_wq_b", "linear_weights_proj"}
    names = (
        *Compressed.names,
        (f"{INSIDE}.indexer.linear_wq_b", "self_attn.compressor.indexer.q_b_proj"),
        (f"{INSIDE}.indexer.linear_weights_proj", "self_attn.compressor.indexer.scorer.weights_proj"),
        *compressor_names(f"{INSIDE}.indexer.compressor", "self_attn.compressor.indexer"),
    )
    makers = (
        *Compressed.makers,
        ("self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"),
        ("self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"),
        *compressor_makers("self_attn.compressor.indexer", "attn.indexer.compressor"),
    )
    halves = 2

    @property
    def ratio(self) -> int:
        return self.dims.csa_ratio

    def parts(self) -> dict[str, Shapes]:
        """Of the indexer: queries of attention's low-rank query, weights of its heads, a compressor of its own."""
        i = self.indexer
        found: Shapes = {
            "linear_wq_b.weight": (i.heads * i.head_dim, self.dims.q_lora_rank),
            "linear_weights_proj.weight": (i.heads, self.hidden),
            **under("compressor.", compressor(self.hidden, i.head_dim, self.ratio, self.halves)),
        }
        return super().parts() | {INDEXERS: under(f"{INSIDE}.indexer.", found)}

    def compressed(self, seen: Seen) -> float:
        return seen.windows(self.ratio, self.indexer.topk)

    def products(self, seen: Seen) -> list[Products]:
        """The indexer's inputs are detached. Its loss asks for attention's own scores of the chosen keys, without a
        gradient."""
        i = self.indexer
        return [
            *super().products(seen),
            Products(INDEXERS, seen.tokens * 2 * self._indexer_lines(), detached=True),
            Products(INDEXERS, 2 * i.heads * i.head_dim * seen.windows(self.ratio), INDEX),
            Products(INDEXERS, 2 * self.channels * self.compressed(seen), ATTEND, once=True),
        ]

    def _indexer_lines(self) -> int:
        """Weights that a token is multiplied with."""
        i = self.indexer
        of_windows = 2 * self.hidden * self.halves * i.head_dim
        return self.dims.q_lora_rank * i.heads * i.head_dim + self.hidden * i.heads + of_windows

    def published(self, sequence: int) -> float:
        """The indexer scores a quarter of all keys for each query."""
        i = self.indexer
        scores = i.heads * i.head_dim * sequence / self.ratio
        return super().published(sequence) + 2 * (self._indexer_lines() + scores)

    def published_keys(self, sequence: int) -> float:
        chosen = min(self.indexer.topk, sequence // self.ratio)
        return chosen * (1 - chosen * self.ratio / (2 * sequence))

    def kept(self) -> float:
        """Queries before and after RoPE, weights of heads, values, gates and keys; the indices, and the loss's two
        distributions over them."""
        i = self.indexer
        channels = 2 * i.heads * i.head_dim + i.heads + i.head_dim * (2 * self.halves + 2 / self.ratio)
        return super().kept() + BF16 * channels + 3 * FP32 * i.topk


def _power_of_two(size: Any, run: Run) -> str | None:
    width = size.attention.head_dim
    fits = width >= 16 and width & (width - 1) == 0
    return None if fits else f"heads have {width} channels, and the kernels want a power of two from 16 on"


def _paths(name: str, kernels: Mapping[str, str], *needs: Need) -> tuple[Path, ...]:
    """Kernels for a GPU in bf16, and torch. ``name``: of the function in ``kernels.install``."""
    install = f"model.layers.deepseek_v4.hybrid.kernels.install:{name}"
    return Path("triton", needs=(*needs, gpu, bf16, triton), install=install, kernels=kernels), Path("torch")


PARTS = (
    *(
        Part(kind.name, kind.label, _paths(kind.name, TRITON, _power_of_two), layers=True)
        for kind in (Sliding, Csa, Hca)
    ),
    Part(
        "streams",
        "hyper-connections",
        _paths("streams", {"hyper-connections": r"^(mapped|map_grad|balanced|collapsed|weighed|read_grad|expanded)"}),
    ),
    Part("wide_norm", "norms with fp32 weights", _paths("norms", {"norms": r"^normed"})),
)
