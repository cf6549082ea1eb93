"""What is before and after the stack: the word embedding, copied to all streams; the head; the depths of MTP."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from model.kinds import ends
from model.kinds.deepseek_v4 import hyper
from model.kinds.deepseek_v4.attention import Sliding
from model.kinds.deepseek_v4.experts import TopkMoe
from model.kinds.ends import WORDS
from model.kinds.kind import BF16, Kind, Products, Seen, Shapes, under


@dataclass(frozen=True)
class Entrance(Kind):
    """The word embedding."""

    vocab: int

    name = "entrance"
    label = "embedding"
    modules = (WORDS,)
    groups = ("embeddings",)
    names = (("embedding.word_embeddings", "model.embed_tokens"),)
    makers = (("model.embed_tokens", "embed"),)

    def parts(self) -> dict[str, Shapes]:
        return {WORDS: {"embedding.word_embeddings.weight": (self.vocab, self.hidden)}}

    def products(self, seen: Seen) -> list[Products]:
        return []

    def published(self, sequence: int) -> float:
        return 0

    def kept(self) -> float:
        return 0

    def normed(self) -> int:
        return 0


@dataclass(frozen=True)
class Head(ends.Head):
    """One stream of all before the last norm and the product with the vocabulary."""

    streams: int

    names = (
        *ends.Head.names,
        ("decoder.hc_head.mapping_proj.weight", "model.hc_head.hc_fn"),
        ("decoder.hc_head.bias", "model.hc_head.hc_base"),
        ("decoder.hc_head.scale", "model.hc_head.hc_scale"),
    )
    makers = (
        ("lm_head", "head"),
        ("model.norm", "norm"),
        ("model.hc_head.hc_fn", "hc_head_fn"),
        ("model.hc_head.hc_base", "hc_head_base"),
        ("model.hc_head.hc_scale", "hc_head_scale"),
    )

    def parts(self) -> dict[str, Shapes]:
        found = under("decoder.hc_head.", hyper.contraction(self.streams, self.hidden))
        return {hyper.CONTRACTION: found, **super().parts()}

    def products(self, seen: Seen) -> list[Products]:
        flops = hyper.contraction_flops(self.streams, self.hidden)
        return [Products(hyper.PART, seen.tokens * flops, None), *super().products(seen)]


@dataclass(frozen=True)
class Mtp(Kind):
    """One depth of multi-token prediction: the next token's embedding is added to each stream as it was before the
    head; window attention and a mixture of experts follow, then one stream of all and a last norm."""

    attention: Sliding
    experts_layer: TopkMoe

    name = "mtp"
    label = "MTP"
    symbol = Sliding.symbol + TopkMoe.symbol
    slots = (Sliding.slot, TopkMoe.slot)
    modules = ("mtp",)
    groups = ("mtp",)
    has_logits = True
    matrices = Sliding.matrices | TopkMoe.matrices | {"e_proj", "h_proj"}
    names = (
        *Sliding.names,
        *TopkMoe.names,
        ("mtp.layers", "model.mtp"),
        ("mtp_model_layer", "block"),
    )
    cuts = TopkMoe.cuts
    makers = (
        ("model.mtp", "mtp"),
        ("final_layernorm", "norm"),
        ("hc_head.mapping_proj.weight", "hc_head_fn"),
        ("hc_head.bias", "hc_head_base"),
        ("hc_head.scale", "hc_head_scale"),
        *((f"block.layers.0.{one}", other) for one, other in Sliding.makers),
        *((f"block.layers.1.{one}", other) for one, other in TopkMoe.makers),
    )
    makers_experts = TopkMoe.makers_experts

    @property
    def _streams(self) -> int:
        return self.attention.hyper.streams

    def parts(self) -> dict[str, Shapes]:
        """Norms of embedding and streams, their projections, the two layers, what makes one stream, the last norm."""
        h = self.hidden
        found: Shapes = {
            **{f"{name}.weight": (h,) for name in ("enorm", "hnorm", "final_layernorm")},
            **{f"{name}.weight": (h, h) for name in ("e_proj", "h_proj")},
            **under("hc_head.", hyper.contraction(self._streams, h)),
            **under("mtp_model_layer.layers.0.", self.attention.shapes()),
            **under("mtp_model_layer.layers.1.", self.experts_layer.shapes()),
        }
        return {self.label: found}

    def products(self, seen: Seen) -> list[Products]:
        """All in one row of the table."""
        h, inner = self.hidden, [*self.attention.products(seen), *self.experts_layer.products(seen)]
        return [
            Products(self.label, seen.tokens * 2 * h * h * (1 + self._streams)),
            Products(self.label, seen.tokens * hyper.contraction_flops(self._streams, h), None),
            *(dataclasses.replace(one, part=self.label) for one in inner),
        ]

    def published(self, sequence: int) -> float:
        """One stream's projections; three norms as a product of one weight each."""
        own = 2 * (3 * self.hidden + 2 * self.hidden**2)
        return own + self.attention.published(sequence) + self.experts_layer.published(sequence)

    def kept(self) -> float:
        """Embedding and streams before and after their norms; the streams before the contraction, and what comes of
        it before and after the last norm."""
        own = BF16 * self.hidden * (2 + 3 * self._streams + 2)
        return own + self.attention.kept() + self.experts_layer.kept()

    def normed(self) -> int:
        """The embedding, each stream, the two layers, the last one."""
        return self.hidden * (2 + self._streams) + self.attention.normed() + self.experts_layer.normed()

    def experts(self) -> int:
        return self.experts_layer.experts()

    def dispatched(self) -> int:
        return self.experts_layer.dispatched()

    def spread(self) -> int:
        return self.experts_layer.spread()

    def idle(self) -> int:
        return self.experts_layer.idle()
