"""DeepSeek-V4: window, sparse and heavily compressed attention with a mixture of experts behind each, hyper-connections
of several streams, and MTP. Its named sizes.

Sources of the public ones: the configurations of DeepSeek-V4-Flash and DeepSeek-V4-Pro, as transformers 5.24.0 reads
them (models/deepseek_v4/configuration_deepseek_v4.py). What a configuration does not have, the weights of losses, is as
in Megatron-LM's recipe (d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1, examples/moe_recipes/deepseek_v4_flash).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal, Self

from pydantic import model_validator

from model.families.family import COEFFICIENTS_AT, Family
from model.families.pattern import Layer
from model.kinds.deepseek_v4 import attention, experts, hyper
from model.kinds.deepseek_v4.attention import Csa, Hca, Indexer, Sliding
from model.kinds.deepseek_v4.attention import Dims as AttentionDims
from model.kinds.deepseek_v4.ends import Entrance, Head, Mtp
from model.kinds.deepseek_v4.experts import Dims as ExpertDims
from model.kinds.deepseek_v4.experts import HashMoe, TopkMoe
from model.kinds.deepseek_v4.hyper import Dims as HyperDims
from model.kinds.kind import Kind

MODEL_TYPE: Literal["deepseek_v4"] = "deepseek_v4"


class Size(Family):
    """One size of DeepSeek-V4.

    ``compress_ratios``: of each published layer, which is two layers here, 0 for a window alone, the CSA's or the
    HCA's; MTP's depths have a window. ``hash_layers``: the first published ones, whose experts are by the token's id.
    Raises ValidationError for dimensions that do not fit each other.
    """

    coefficients_at = COEFFICIENTS_AT
    parameter_rows = (
        "embedding",
        attention.PART,
        attention.COMPRESSORS,
        attention.INDEXERS,
        experts.PART,
        experts.BIASES,
        hyper.PART,
        hyper.CONTRACTION,
        "final norm",
        "head",
        "MTP",
    )
    flops_rows = (experts.PART, attention.PART, "logits", "MTP", attention.INDEXERS, attention.COMPRESSORS, hyper.PART)
    norm_rows = (
        *("embeddings", "sliding", "csa", "hca", "compressor", "indexer"),
        *("router", "experts", "mhc", "mtp", "head"),
    )
    network = "model.step.deepseek_v4:DeepseekV4"
    path_parts = ("sliding", "csa", "hca", "topk_moe", "hash_moe", "streams", "wide_norm", "wgrad", "loss")
    upstream = "Megatron dev's"
    unread = "no layer of DeepSeek-V4 has a twin with state"
    stacks = ("released", "newest")  # routers and MTP of Megatron-LM's branch dev are called otherwise
    uncaptured = "no layer of DeepSeek-V4 was ever captured in a CUDA graph"

    has_public = True
    layers_of_public = 2
    # transformers 5.24.0 undoes its own conversion (conversion_mapping.py), which is not one to one
    resaved = (
        (r"^embed\.", "model.embed_tokens."),
        (r"^hc_head_", "model.hc_head.hc_"),
        (r"^(?=layers\.|norm\.)", "model."),
        (r"\.kv_norm\.", ".norm."),
    )
    fp32 = ("norm", "_hyper_connection.", "hc_head.", ".attn_sink", ".ape", ".expert_bias")
    references = MappingProxyType({"transformers": "model.alignment.deepseek_v4.drawn:Drawn"})

    model_type: Literal["deepseek_v4"] = MODEL_TYPE  # a record's family; NAM56R's records have no such field
    vocab: int = 129_280
    mtp_depths: int = 1
    mtp_loss_coeff: float = 0.1
    sequence: int = 4096  # of figures and of a row; positions go up to 1,048,576
    rms_norm_eps: float = 1e-6
    compress_ratios: tuple[int, ...]
    hash_layers: int = 3
    attention: AttentionDims = AttentionDims()
    indexer: Indexer = Indexer()
    experts: ExpertDims = ExpertDims()
    hyper: HyperDims = HyperDims()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if refused := next(self._refused(), None):
            raise ValueError(f"{self.name}: {refused}")
        return self

    def _refused(self) -> Iterator[str]:
        """Why the dimensions do not fit each other."""
        a, i, e = self.attention, self.indexer, self.experts
        if self.heads % a.o_groups:
            yield f"{a.o_groups} groups do not divide {self.heads} heads"
        if a.qk_rope_head_dim % 2:
            yield f"RoPE turns pairs of channels, and {a.qk_rope_head_dim} is odd"
        for what, width in (("head", a.head_dim), ("indexer's head", i.head_dim)):
            if a.qk_rope_head_dim > width:
                yield f"RoPE of {a.qk_rope_head_dim} channels, and a {what} has {width}"
        if not 0 < a.csa_ratio < a.hca_ratio:
            yield f"CSA's ratio {a.csa_ratio} is not above 0 and below HCA's {a.hca_ratio}"
        if not self.compress_ratios:
            yield "no layer: compress_ratios is empty"
        for number, ratio in enumerate(self.compress_ratios, 1):
            if ratio not in (0, a.csa_ratio, a.hca_ratio):
                yield f"layer {number} has the ratio {ratio}, none of 0, {a.csa_ratio} and {a.hca_ratio}"
        if self.hash_layers > len(self.compress_ratios):
            yield f"{self.hash_layers} layers with experts by hash, of {len(self.compress_ratios)} layers"
        if e.topk > e.count:
            yield f"{e.topk} experts of a token, of {e.count} experts"
        counted = {
            "window": a.window,
            "index topk": i.topk,
            "experts of a token": e.topk,
            "streams": self.hyper.streams,
            "Sinkhorn's iterations": self.hyper.sinkhorn_iterations,
        }
        yield from (f"{what}: {number}, less than one" for what, number in counted.items() if number < 1)

    @property
    def _sliding(self) -> Sliding:
        return Sliding(self.hidden, self.hyper, self.heads, self.attention)

    @property
    def _topk_moe(self) -> TopkMoe:
        return TopkMoe(self.hidden, self.hyper, self.experts)

    @property
    def kinds(self) -> dict[str, Kind]:
        kinds: list[Kind] = [
            self._sliding,
            Csa(self.hidden, self.hyper, self.heads, self.attention, self.indexer),
            Hca(self.hidden, self.hyper, self.heads, self.attention),
            HashMoe(self.hidden, self.hyper, self.experts, self.vocab),
            self._topk_moe,
        ]
        return {kind.name: kind for kind in kinds}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Of each published layer attention, then experts."""
        kinds, stack = self.kinds, list[Kind]()
        of_ratio = {0: Sliding.name, self.attention.csa_ratio: Csa.name, self.attention.hca_ratio: Hca.name}
        for number, ratio in enumerate(self.compress_ratios, 1):
            router = HashMoe.name if number <= self.hash_layers else TopkMoe.name
            stack += [kinds[of_ratio[ratio]], kinds[router]]
        return tuple(Layer(number, kind) for number, kind in enumerate(stack, 1))

    @property
    def residual(self) -> int:
        """All streams."""
        return self.hyper.streams * self.hidden

    @property
    def remarks(self) -> dict[str, list[str]]:
        return {"ratios of the published layers": [*map(str, self.compress_ratios)]}

    @property
    def entrance(self) -> Entrance:
        return Entrance(self.hidden, self.vocab)

    @property
    def head(self) -> Head:
        return Head(self.hidden, self.vocab, uses=1 + self.mtp_depths, streams=self.hyper.streams)

    @property
    def mtp(self) -> Mtp:
        return Mtp(self.hidden, self._sliding, self._topk_moe)


def _alternating(times: int, csa: int = 4, hca: int = 128) -> tuple[int, ...]:
    """Two windows, CSA and HCA in turn, CSA at the end: as V4-Flash, of which ``times`` is 20."""
    return (0, 0, *(csa, hca) * times, csa)


FLASH = Size(name="v4_flash", hidden=4096, heads=64, compress_ratios=_alternating(20))
SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        FLASH,
        Size(
            name="v4_pro",
            hidden=7168,
            heads=128,
            compress_ratios=(128, 128, *(4, 128) * 29, 4),
            attention=AttentionDims(q_lora_rank=1536, o_groups=16),
            indexer=Indexer(topk=1024),
            experts=ExpertDims(count=384, ffn=3072, scaling=2.5),
        ),
        # the widths of V4-Flash: layers and experts cut so that AdamW's state fits a GPU of 139 GiB
        FLASH.model_copy(
            update={
                "name": "v4_medium",
                "compress_ratios": _alternating(2),
                "experts": FLASH.experts.model_copy(update={"count": 16}),
            }
        ),
        Size(
            name="v4_small",
            hidden=1024,
            heads=16,
            vocab=65_536,
            compress_ratios=_alternating(3),
            attention=AttentionDims(q_lora_rank=384, head_dim=128, o_groups=4, o_lora_rank=256),
            indexer=Indexer(heads=16, head_dim=64, topk=128),
            experts=ExpertDims(count=64, ffn=448),
        ),
        Size(
            name="v4_tiny",
            hidden=128,
            heads=4,
            vocab=320,  # 256 bytes and EOD, rounded up to a multiple of 64
            sequence=256,
            compress_ratios=(0, 4, 16, 4),
            hash_layers=1,
            attention=AttentionDims(
                q_lora_rank=32,
                head_dim=32,
                qk_rope_head_dim=16,
                o_groups=2,
                o_lora_rank=32,
                window=32,
                hca_ratio=16,
            ),
            indexer=Indexer(heads=4, head_dim=32, topk=8),
            experts=ExpertDims(count=8, topk=2, ffn=64),
        ),
    )
}
