"""What is before and after the stack of layers: entrance embeddings, head, and the depths of MTP."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import count, islice
from typing import ClassVar

from pydantic import Field

from model.kinds.kind import BF16, Frozen, Kind, Products, Seen, Shapes, under
from model.kinds.mla import ATTENTION, Mla
from model.kinds.path import Code, Part, Path, Seam
from model.kinds.run import bf16, gpu

WORDS = "embedding"  # the row of the word embedding, of which the last stage of a pipeline has a copy for MTP


class Ngram(Frozen):
    """n-gram hash embedding at the entrance: tables near ``rows`` rows, ``dim`` wide, concatenated."""

    orders: tuple[int, ...] = (2, 3)
    heads: int = 8
    rows: int = 500_000
    dim: int = 16

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each table, order by order: a prime each."""
        return prime_sizes(self.rows, len(self.orders) * self.heads)


class Structure(Frozen):
    """Structure-aware embedding: classes of each per-token field, and the width they are summed in."""

    fields: dict[str, int] = Field(default_factory=lambda: {"structure": 9, "dep_level": 16})
    bottleneck: int = 64


@dataclass(frozen=True)
class Entrance(Kind):
    """Word embedding, n-gram hash embedding and structure embedding, added."""

    vocab: int
    ngram: Ngram
    structure: Structure

    name = "entrance"
    label = "embeddings"
    modules = (WORDS, "ngram", "structure")
    groups = ("embeddings",)
    matrices = frozenset({"projection"})  # tables are AdamW's, as in arXiv 2502.16982
    names = (("embedding.word_embeddings", "model.embed_tokens"),)

    @property
    def _looked_up(self) -> int:
        """Channels of a token's rows of the hash tables."""
        return len(self.ngram.orders) * self.ngram.heads * self.ngram.dim

    def parts(self) -> dict[str, Shapes]:
        n, s, h = self.ngram, self.structure, self.hidden
        rows = sum(n.sizes)
        hashed: Shapes = {"table.weight": (rows, n.dim), "projection.weight": (h, self._looked_up)}
        tables: Shapes = {f"embeddings.{name}.weight": (classes, s.bottleneck) for name, classes in s.fields.items()}
        return {
            WORDS: {"embedding.word_embeddings.weight": (self.vocab, h)},
            "n-gram hash embedding": under("ngram.", hashed),
            "structure embedding": under("structure.", tables | {"projection.weight": (h, s.bottleneck)}),
        }

    def products(self, seen: Seen) -> list[Products]:
        """From the hash tables' rows and the structure's bottleneck to the hidden width."""
        return [Products(self.label, seen.tokens * 2 * self.hidden * (self._looked_up + self.structure.bottleneck))]

    def published(self, sequence: int) -> float:
        return 0

    def kept(self) -> float:
        return 0

    def normed(self) -> int:
        return 0


@dataclass(frozen=True)
class Head(Kind):
    """The last norm and the product with the vocabulary, which is taken ``uses`` times: for each loss."""

    vocab: int
    uses: int

    name = "head"
    label = "head"
    modules = ("decoder", "output_layer")
    groups = ("head",)
    names: ClassVar[tuple[tuple[str, str], ...]] = (("output_layer", "lm_head"), ("decoder.final_norm", "model.norm"))

    def parts(self) -> dict[str, Shapes]:
        return {
            "final norm": {"decoder.final_norm.weight": (self.hidden,)},
            "head": {"output_layer.weight": (self.vocab, self.hidden)},
        }

    def products(self, seen: Seen) -> list[Products]:
        return [Products("logits", seen.tokens * 2 * self.hidden * self.logits())]

    def published(self, sequence: int) -> float:
        return 2 * self.hidden * self.logits()

    def kept(self) -> float:
        """Nothing: the loss is fused with the product, and logits are never held whole."""
        return 0

    def logits(self) -> int:
        return self.vocab * self.uses


@dataclass(frozen=True)
class Mtp(Kind):
    """One depth of multi-token prediction: from two hidden states to one, dense attention, dense MLP."""

    attention: Mla
    ffn: int

    name = "mtp"
    label = "MTP"
    symbol = "+-"
    slots = (Mla.slot, "mlp_layer")
    modules = ("mtp",)
    groups = ("mtp",)
    has_logits = True
    matrices = Mla.matrices | {"linear_fc1", "linear_fc2", "eh_proj"}
    names = (
        *Mla.names,
        ("mtp.layers", "model.mtp"),
        ("mtp_model_layer", "block"),
        ("pre_mlp_layernorm", "post_attention_layernorm"),
        ("mlp.linear_fc1", "mlp.up_proj"),
        ("mlp.linear_fc2", "mlp.down_proj"),
    )

    def parts(self) -> dict[str, Shapes]:
        """Two norms and the 2h -> h projection, dense MLA, dense MLP with its norm, the depth's last norm."""
        h = self.hidden
        found: Shapes = {
            **{f"{name}.weight": (h,) for name in ("enorm", "hnorm", "final_layernorm")},
            "eh_proj.weight": (h, 2 * h),
            **under("mtp_model_layer.layers.0.", self.attention.shapes()),
            "mtp_model_layer.layers.1.pre_mlp_layernorm.weight": (h,),
            "mtp_model_layer.layers.1.mlp.linear_fc1.weight": (self.ffn, h),
            "mtp_model_layer.layers.1.mlp.linear_fc2.weight": (h, self.ffn),
        }
        return {self.label: found}

    def products(self, seen: Seen) -> list[Products]:
        """MLA's projections, from 2h to h, the dense MLP; attention over all keys."""
        projections = self.attention.projections() + 4 * self.hidden**2 + 4 * self.hidden * self.ffn
        return [
            Products(self.label, seen.tokens * projections),
            Products(self.label, self.attention.scores(seen.keys()), ATTENTION),
        ]

    def published(self, sequence: int) -> float:
        return self.attention.published(sequence) + 4 * self.hidden * self.ffn

    def kept(self) -> float:
        return self.attention.kept() + BF16 * (6 * self.hidden + 2 * self.ffn)

    def normed(self) -> int:
        """Five norms: of both hidden states, attention's, the MLP's and the last one."""
        return 5 * self.hidden


@functools.cache
def prime_sizes(rows: int, tables: int) -> tuple[int, ...]:
    """The first ``tables`` primes from 0.04% below ``rows`` on: 16 from 499,801 to 500,041 have 7,998,862 in all."""
    return tuple(islice((n for n in count(max(2, rows - rows // 2500)) if _is_prime(n)), tables))


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


HEAD = Seam(
    "head",
    upstream="megatron.core.tensor_parallel.layers:ColumnParallelLinear.forward",
    sha256="dac5d6cfeaa44ba64dddce0408a797439050439c0010b5fa3d5d25e8eff43a08",
    reason="the output layer hands hidden states to the loss, so that logits are never held whole",
    also=("8de69f2acd5f7e9bbb7fedc0e4546777b85e59587ee5af3e65d279cf025e8dca",),
    ours="on branch dev Megatron has a loss without logits (packs 10, 11); it does not need Liger-Kernel",
)
LINEAR_LOSS = Seam(
    "linear_loss",
    upstream="megatron.core.fusions.fused_linear_cross_entropy:_get_platform",
    sha256="8150ea4d340c0a0d49b13133022e020337c892489bdf852676fa69a8c625b4a4",
    reason="on a CPU pack 10's PyTorch operations compute Megatron's own loss: its dispatch takes GPUs alone",
    ours="a stand-in for hosts without a GPU, for which upstream has no such loss",
)
OURS = "model.layers.ends.head:ours"
PARTS = (
    Part(
        "loss",
        "cross entropy",
        (
            Path(
                "liger_once",
                needs=(gpu,),
                # pack 09's
                code=Code(
                    "liger_kernel.ops.fused_linear_cross_entropy:fused_linear_cross_entropy_per_token_backward", "grad"
                ),
                seams=(HEAD,),
                install=OURS,
                kernels={"cross entropy": r"cross_?entropy"},
            ),
            Path("liger", needs=(gpu,), seams=(HEAD,), install=OURS, kernels={"cross entropy": r"cross_?entropy"}),
            Path("torch", seams=(HEAD,), install=OURS),
            Path(
                "linear",
                code=Code("megatron.core.models.hybrid.hybrid_model:HybridModel.__init__", "LinearCrossEntropyModule"),
                seams=(LINEAR_LOSS,),
                install="model.layers.ends.head:megatrons",
                settings={"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "linear"},
                option="Megatron-LM's own linear cross entropy, of its branch dev: packs 10 and 11",
            ),
        ),
    ),
    Part(
        "mtp_proj",
        "MTP's MLP and entrance",
        (
            Path("bf16"),
            Path("fp8", needs=(gpu, bf16), option="products of MTP's MLP and entrance in FP8"),
        ),
    ),
)
