"""NAM56R: a period of Mamba-3, attention, mixture of experts and M²RNN, dense and sparse attention in turn, three
embeddings at the entrance, and MTP. Its named sizes."""

from __future__ import annotations

from types import MappingProxyType

from pydantic import model_validator

from model.families.family import COEFFICIENTS_AT, Family
from model.families.pattern import Layer
from model.kinds import dsa, mla, moe
from model.kinds.ends import Entrance, Head, Mtp, Ngram, Structure
from model.kinds.kind import Kind
from model.kinds.recurrent import m2rnn, mamba3

PERIOD = "AEMEAEMEAEMR"
KIND_OF_LETTER = {"E": "moe", "M": "mamba3", "R": "m2rnn"}
MLA_EVERY = 4  # the first of each four attention layers is full MLA, the other three are sparse


class Size(Family):
    """One size of NAM56R."""

    coefficients_at = COEFFICIENTS_AT
    parameter_rows = (
        "embedding",
        "n-gram hash embedding",
        "structure embedding",
        "Mamba-3",
        "attention",
        "indexers",
        "MoE",
        "M²RNN",
        "final norm",
        "head",
        "MTP",
    )
    flops_rows = ("Mamba-3", "MoE", "logits", "MTP", "attention", "indexers", "M²RNN", "embeddings")
    network = "model.step.network:Nam56r"
    references = MappingProxyType({"formulas": "model.alignment.nam56r.drawn:Drawn"})
    path_parts = (
        *("wgrad", "norm", "mamba3", "mamba_proj", "bc_norm", "m2rnn", "mla", "dsa", "sparse"),
        *("moe", "shared", "loss", "mtp_proj"),
    )
    norm_rows = ("embeddings", "mamba3", "m2rnn", "mla", "dsa", "indexer", "router", "experts", "mtp", "head")

    ffn: int  # the MTP depth's dense MLP
    layer_count: int = 52
    vocab: int = 65_536
    mtp_depths: int = 1
    mtp_loss_coeff: float = 0.1
    sequence: int = 4096
    attention: mla.Dims = mla.Dims()
    indexer: dsa.Indexer = dsa.Indexer()
    experts: moe.Dims = moe.Dims()
    mamba: mamba3.Dims = mamba3.Dims()
    m2rnn: m2rnn.Dims
    ngram: Ngram = Ngram()
    structure: Structure = Structure()

    @model_validator(mode="after")
    def _whole(self) -> Size:
        if self.hidden * self.mamba.expand % self.mamba.head_dim:
            raise ValueError(f"{self.name}: mamba heads do not divide {self.hidden * self.mamba.expand} channels")
        if self.mamba_heads % self.mamba.groups:
            raise ValueError(f"{self.name}: {self.mamba.groups} groups do not divide {self.mamba_heads} mamba heads")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.structure.fields)

    @property
    def _mla(self) -> mla.Mla:
        return mla.Mla(self.hidden, self.heads, self.attention)

    @property
    def _mamba3(self) -> mamba3.Mamba3:
        return mamba3.Mamba3(self.hidden, self.mamba)

    @property
    def kinds(self) -> dict[str, Kind]:
        kinds: list[Kind] = [
            self._mla,
            dsa.Dsa(self.hidden, self.heads, self.attention, self.indexer),
            moe.Moe(self.hidden, self.experts),
            self._mamba3,
            m2rnn.M2rnn(self.hidden, self.m2rnn, counted_as=self._mamba3),
        ]
        return {kind.name: kind for kind in kinds}

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The first ``layer_count`` layers of the tiled period. Of three sparse layers the first computes indices."""
        kinds, stack, attention, source = self.kinds, list[Layer](), 0, 0
        shares = dsa.Dsa(self.hidden, self.heads, self.attention, self.indexer, computes=False)
        for number in range(1, self.layer_count + 1):
            letter = PERIOD[(number - 1) % len(PERIOD)]
            if letter != "A":
                stack.append(Layer(number, kinds[KIND_OF_LETTER[letter]]))
                continue
            rank, attention = attention % MLA_EVERY, attention + 1
            source = number if rank == 1 else source
            if rank == 0:
                stack.append(Layer(number, kinds["mla"]))
            else:
                stack.append(Layer(number, kinds["dsa"] if rank == 1 else shares, source))
        return tuple(stack)

    @property
    def entrance(self) -> Entrance:
        return Entrance(self.hidden, self.vocab, self.ngram, self.structure)

    @property
    def head(self) -> Head:
        return Head(self.hidden, self.vocab, uses=1 + self.mtp_depths)

    @property
    def mtp(self) -> Mtp:
        return Mtp(self.hidden, self._mla, self.ffn)

    @property
    def mamba_heads(self) -> int:
        return self._mamba3.heads


def index_sharing(stack: tuple[Layer, ...]) -> tuple[int, int]:
    """(offset, frequency) of Megatron's rule: layer L computes its top-k where ``(L - offset) % frequency == 0``.

    ValueError where the stack's sharing does not follow such a rule. (1, 1) without sparse attention.
    """
    sparse = [layer for layer in stack if layer.indices_from is not None]
    if not sparse:
        return 1, 1
    offset, frequency = sparse[0].number, MLA_EVERY * PERIOD.index("A", 1)
    for layer in sparse:
        if layer.number - (layer.number - offset) % frequency != layer.indices_from:
            raise ValueError(f"layer {layer.number} takes indices from {layer.indices_from}, not by Megatron's rule")
    return offset, frequency


def _wide(hidden: int) -> m2rnn.Dims:
    return m2rnn.Dims(heads=hidden // 80)


NAM56R = Size(name="nam56r", hidden=3584, heads=28, ffn=18_944, m2rnn=_wide(3584))
TINY = Size(
    name="nam56r_tiny",
    hidden=128,
    heads=4,
    ffn=256,
    layer_count=12,
    vocab=320,  # 256 bytes and EOD, rounded up to a multiple of 64
    sequence=256,
    attention=mla.Dims(q_lora_rank=32, kv_lora_rank=32, qk_nope_dim=16, qk_rope_dim=16, v_dim=16),
    indexer=dsa.Indexer(heads=4, head_dim=16, topk=32),
    experts=moe.Dims(count=8, topk=2, ffn=64, shared_ffn=64),
    mamba=mamba3.Dims(head_dim=32, groups=2, state=32),
    m2rnn=m2rnn.Dims(heads=4, k_dim=16, v_dim=8),
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
