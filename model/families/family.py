"""What an architecture says of itself, from which all else about its sizes is derived."""

from __future__ import annotations

import functools
import operator
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from model.families.pattern import Layer
from model.kinds.kind import Frozen, Kind

# Of an architecture with MTP, experts and an indexer: {field of a recipe: where the size has it}.
COEFFICIENTS_AT: Mapping[str, tuple[str, ...]] = {
    "mtp_loss_coeff": ("mtp_loss_coeff",),
    "aux_loss_coeff": ("experts", "aux_loss_coeff"),
    "bias_update_rate": ("experts", "bias_update_rate"),
    "indexer_loss_coeff": ("indexer", "loss_coeff"),
}


class Family(Frozen):
    """One size of an architecture. Widths in channels, counts in units; parameters and FLOPs follow from it alone."""

    # {field of a recipe: where the size has it}: weights of losses and rates, which change no layer
    coefficients_at: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # The rows of tables that are always there, in this order; others come after them.
    parameter_rows: ClassVar[tuple[str, ...]] = ()
    flops_rows: ClassVar[tuple[str, ...]] = ()
    norm_rows: ClassVar[tuple[str, ...]] = ()
    upstream: ClassVar[str] = "Megatron's"  # whose pattern and formula of FLOPs ``symbol`` and ``published`` are of
    network: ClassVar[str] = ""  # "module:class" of one pipeline stage on Megatron-Core
    path_parts: ClassVar[tuple[str, ...]] = ()  # those of ``model.kinds.catalogue`` that it has
    unread: ClassVar[str] = ""  # why its checkpoints are trained, exported and imported alone; empty: all can
    stacks: ClassVar[tuple[str, ...]] = ()  # of model/stacks.yaml, those that it is built on; empty: all
    uncaptured: ClassVar[str] = ""  # why its layers take no CUDA graphs; empty: they do

    has_public: ClassVar[bool] = False  # whether its weights lie in files as a public model's
    layers_of_public: ClassVar[int] = 1  # layers here to one of the public model
    # (pattern, what stands for it) by which the public model, where it saves itself, writes other names than its makers
    resaved: ClassVar[tuple[tuple[str, str], ...]] = ()
    fp32: ClassVar[tuple[str, ...]] = ()  # parts of a checkpoint's keys that the public model has in fp32 in any dtype
    # {what it can be aligned with, the usual one first: "module:class" of ``model.alignment.draw.Draw``}
    references: ClassVar[Mapping[str, str]] = {}

    name: str
    hidden: int
    heads: int
    vocab: int
    mtp_depths: int
    mtp_loss_coeff: float
    sequence: int

    @property
    @abstractmethod
    def kinds(self) -> dict[str, Kind]:
        """{name: one of this kind} of all that layers of the main stack may be."""

    @property
    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """The main stack."""

    @property
    @abstractmethod
    def entrance(self) -> Kind:
        """What is before the main stack."""

    @property
    @abstractmethod
    def head(self) -> Kind:
        """What is behind the main stack."""

    @property
    @abstractmethod
    def mtp(self) -> Kind:
        """One depth of multi-token prediction."""

    @property
    def residual(self) -> int:
        """Channels of a token between layers, which travel from one pipeline stage to the next."""
        return self.hidden

    @property
    def fields(self) -> tuple[str, ...]:
        """Side columns of a dataset that it embeds beside token ids, in order."""
        return ()

    @property
    def remarks(self) -> dict[str, list[str]]:
        """{row of the layer map: what it says of single layers}."""
        shared = [f"{x.number}←{x.indices_from}" for x in self.layers if x.indices_from not in (None, x.number)]
        return {"indices taken from": shared}

    @property
    def ends(self) -> tuple[Kind, Kind, Kind]:
        return self.entrance, self.head, self.mtp

    @property
    def every(self) -> tuple[Kind, ...]:
        """One of each kind that the architecture has, the ends last."""
        return *self.kinds.values(), *self.ends

    @property
    def placed(self) -> list[tuple[str, Kind]]:
        """(what its tensors' names begin with in a checkpoint, itself) of everything that the model is made of."""
        layers = [(f"decoder.layers.{layer.number - 1}.", layer.of) for layer in self.layers]
        depths = [(f"mtp.layers.{depth}.", self.mtp) for depth in range(self.mtp_depths)]
        return [("", self.entrance), *layers, ("", self.head), *depths]

    def count(self, kind: str) -> int:
        """Layers of a kind in the main stack."""
        return len(self.numbers(kind))

    def numbers(self, kind: str) -> list[int]:
        """The 1-based numbers of the layers of a kind."""
        return [layer.number for layer in self.layers if layer.kind == kind]

    @property
    def experts_of_layer(self) -> int:
        """Routed experts of a layer that has any; 1 for a model without."""
        return max((layer.of.experts() for layer in self.layers), default=0) or 1

    @property
    def norm_groups(self) -> tuple[str, ...]:
        """The kinds of parameters whose gradients' norms are measured."""
        own = (group for kind in self.every for group in kind.groups)
        return tuple(dict.fromkeys([*self.norm_rows, *own]))

    @property
    def matrices(self) -> frozenset[str]:
        """The modules whose two-dimensional weights Muon takes, by the last part of their names."""
        return frozenset().union(*(kind.matrices for kind in self.every))

    @property
    def coefficients(self) -> dict[str, float]:
        """{field of a recipe: weight of a loss, or rate}."""
        dumped: Any = self.model_dump()
        return {field: functools.reduce(operator.getitem, at, dumped) for field, at in self.coefficients_at.items()}

    def with_coefficients(self, given: Mapping[str, float | None]) -> Self:
        """With these in place of its own ``coefficients``; None: its own."""
        changed = self.model_dump()
        for field, (*folders, last) in self.coefficients_at.items():
            if (value := given.get(field)) is not None:
                functools.reduce(operator.getitem, folders, changed)[last] = value
        return self.model_validate(changed)

    def same_model(self, other: dict[str, Any]) -> bool:
        """Whether ``other``, a ``model_dump(mode="json")``, has the same layers: coefficients may differ."""
        try:
            return type(self).model_validate(other).with_coefficients(self.coefficients) == self
        except ValueError:
            return False
