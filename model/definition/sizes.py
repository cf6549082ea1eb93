"""The named sizes of NAM56R: one typed definition each, and all else is derived from it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from model.definition import pattern
from model.definition.pattern import Layer
from reproducers.base.errors import PatchlaneError


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Attention(Frozen):
    """MLA (DeepSeek-V2, arXiv 2405.04434): ranks and channels a head; its RoPE."""

    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_dim: int = 64
    qk_rope_dim: int = 64
    v_dim: int = 64
    rope_base: int = 500_000

    @property
    def qk_dim(self) -> int:
        return self.qk_nope_dim + self.qk_rope_dim


class Indexer(Frozen):
    """DSA's lightning indexer (DeepSeek-V3.2-Exp), which chooses the keys of a query, and the weight of its loss."""

    heads: int = 32
    head_dim: int = 64
    topk: int = 256
    loss_coeff: float = 1.0  # with 1e-3 its gradients are below AdamW's epsilon: docs/log.md


class Experts(Frozen):
    """Mixture of experts: sigmoid router, selection-only bias (arXiv 2408.15664), non-gated GELU."""

    count: int = 16
    topk: int = 4
    ffn: int = 896
    shared_ffn: int = 1024
    aux_loss_coeff: float = 1e-4
    bias_update_rate: float = 1e-3


class Mamba(Frozen):
    """Mamba-3 mixer, as mamba_ssm.modules.mamba3.Mamba3 names its arguments; of rank 1 it is SISO, else MIMO."""

    expand: int = 2
    head_dim: int = 64
    groups: int = 8
    state: int = 128
    rank: int = 4
    chunk: int = 16
    rope_fraction: float = 0.5
    dt_min: float = 0.001
    dt_max: float = 0.1
    A_floor: float = 1e-4

    @property
    def mimo(self) -> bool:
        return self.rank > 1


class M2rnn(Frozen):
    """M²RNN mixer (arXiv 2603.14360): one q and one k head, ``heads`` of v."""

    heads: int
    k_dim: int = 64
    v_dim: int = 16
    conv: int = 4


class Ngram(Frozen):
    """n-gram hash embedding at the entrance: tables near ``rows`` rows, ``dim`` wide, concatenated."""

    orders: tuple[int, ...] = (2, 3)
    heads: int = 8
    rows: int = 500_000
    dim: int = 16


class Structure(Frozen):
    """Structure-aware embedding: classes of each per-token field, and the width they are summed in."""

    fields: dict[str, int] = Field(default_factory=lambda: {"structure": 9, "dep_level": 16})
    bottleneck: int = 64


class Size(Frozen):
    """One size of NAM56R. Widths in channels, counts in units; parameters and FLOPs follow from it alone."""

    name: str
    hidden: int
    heads: int
    ffn: int  # the MTP depth's dense MLP; the main stack has none
    layer_count: int = 52
    vocab: int = 65_536
    mtp_depths: int = 1
    mtp_loss_coeff: float = 0.1
    sequence: int = 4096
    attention: Attention = Attention()
    indexer: Indexer = Indexer()
    experts: Experts = Experts()
    mamba: Mamba = Mamba()
    m2rnn: M2rnn
    ngram: Ngram = Ngram()
    structure: Structure = Structure()

    @model_validator(mode="after")
    def _whole(self) -> Size:
        if self.hidden * self.mamba.expand % self.mamba.head_dim:
            raise ValueError(f"{self.name}: mamba heads do not divide {self.hidden * self.mamba.expand} channels")
        if self.mamba_heads % self.mamba.groups:
            raise ValueError(f"{self.name}: {self.mamba.groups} groups do not divide {self.mamba_heads} mamba heads")
        return self

    def with_coefficients(
        self, mtp: float | None, aux: float | None, bias_rate: float | None, indexer: float | None
    ) -> Size:
        """With these coefficients of losses, and rate of the routers' bias, in place of its own; None: its own."""
        changed = self.model_dump()
        for part, name, value in (
            (changed, "mtp_loss_coeff", mtp),
            (changed["experts"], "aux_loss_coeff", aux),
            (changed["experts"], "bias_update_rate", bias_rate),
            (changed["indexer"], "loss_coeff", indexer),
        ):
            part[name] = part[name] if value is None else value
        return self.model_validate(changed)

    def same_model(self, other: dict[str, Any]) -> bool:
        """Whether ``other``, a ``model_dump(mode="json")``, has the same layers: coefficients may differ."""
        own = (self.mtp_loss_coeff, self.experts.aux_loss_coeff, self.experts.bias_update_rate, self.indexer.loss_coeff)
        try:
            return Size.model_validate(other).with_coefficients(*own) == self
        except ValueError:
            return False

    @property
    def layers(self) -> tuple[Layer, ...]:
        return pattern.layers(self.layer_count)

    @property
    def mamba_heads(self) -> int:
        return self.hidden * self.mamba.expand // self.mamba.head_dim

    def count(self, kind: str) -> int:
        """Layers of a kind in the main stack."""
        return sum(layer.kind == kind for layer in self.layers)

    def numbers(self, kind: str) -> list[int]:
        """The 1-based numbers of the layers of a kind."""
        return [layer.number for layer in self.layers if layer.kind == kind]


def _wide(hidden: int) -> M2rnn:
    return M2rnn(heads=hidden // 80)


NAM56R = Size(name="nam56r", hidden=3584, heads=28, ffn=18_944, m2rnn=_wide(3584))
TINY = Size(
    name="nam56r_tiny",
    hidden=128,
    heads=4,
    ffn=256,
    layer_count=12,
    vocab=320,  # 256 bytes and EOD, rounded up to a multiple of 64
    sequence=256,
    attention=Attention(q_lora_rank=32, kv_lora_rank=32, qk_nope_dim=16, qk_rope_dim=16, v_dim=16),
    indexer=Indexer(heads=4, head_dim=16, topk=32),
    experts=Experts(count=8, topk=2, ffn=64, shared_ffn=64),
    mamba=Mamba(head_dim=32, groups=2, state=32),
    m2rnn=M2rnn(heads=4, k_dim=16, v_dim=8),
    ngram=Ngram(rows=2_000),
    structure=Structure(bottleneck=16),
)
SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        NAM56R,
        Size(name="nam56r_wide", hidden=4096, heads=32, ffn=21_504, mtp_depths=2, m2rnn=_wide(4096)),
        # a quarter of the layers at full width: every layer kind and the index sharing, on one GPU
        NAM56R.model_copy(update={"name": "nam56r_quarter", "layer_count": 13}),
        TINY,
        # Mamba-3 SISO, which upstream has other kernels for: with it pack 04 is in a run
        TINY.model_copy(
            update={"name": "nam56r_siso", "mamba": TINY.mamba.model_copy(update={"rank": 1, "chunk": 64})}
        ),
    )
}


def named(name: str) -> Size:
    """The size called ``name``. Raises PatchlaneError if there is none."""
    if name not in SIZES:
        raise PatchlaneError(f"no size is named {name!r}", f"choose one of: {', '.join(SIZES)}")
    return SIZES[name]


def expert_parallel(size: Size, parallel: int) -> None:
    """Raise PatchlaneError if the expert-parallel ranks cannot hold the same number of experts each."""
    count = size.experts.count
    if count % parallel:
        divisors = ", ".join(str(number) for number in range(1, count + 1) if count % number == 0)
        raise PatchlaneError(f"{count} experts cannot be shared by --ep {parallel} ranks", f"--ep one of {divisors}")
