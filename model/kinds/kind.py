"""The questions that each kind of layer, and each end of the model, answers: of its own dimensions, without torch.

Tensors' names are a checkpoint's; their shapes are those of megatron-core 0.19.0's modules
(5be9626709af2722333bf54797c954c09edeada3), mamba-ssm 2.3.2.post1's Mamba3 and ``model.layers``. A multiply-add is two
FLOPs. Bytes and channels are of one token in one layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

Shapes = dict[str, tuple[int, ...]]
BF16, FP32 = 2, 4  # bytes
BACKWARD = 3  # products of forward and backward pass over those of the forward pass


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Seen(Protocol):
    """Tokens, and the keys that they may see."""

    @property
    def tokens(self) -> float: ...

    def keys(self, most: float = math.inf) -> float:
        """Keys of all queries, summed, where a query sees ``most`` at most."""

    def windows(self, ratio: int, most: float = math.inf) -> float:
        """Windows of ``ratio`` tokens that all queries may see, summed: whose last token is the query or before it,
        ``most`` of them at most. A window of one token is a key."""


def windows(tokens: int, ratio: int, most: float = math.inf) -> float:
    """Of one document of ``tokens``: the sum of min(most, floor(s / ratio)) over its queries s = 1 … tokens."""
    last = min(tokens // ratio, most)  # what the last query sees; each number below it is seen by ``ratio`` queries
    return ratio * last * (last - 1) / 2 + last * (tokens - last * ratio + 1)


@dataclass(frozen=True)
class Kernels:
    """GPU kernels whose work is counted together: its name, and theirs by ``model.profile.kernel_kinds``."""

    name: str
    kinds: tuple[str, ...]


GEMM = Kernels("matrix products", ("GEMM", "grouped GEMM"))


@dataclass(frozen=True)
class Products:
    """Matrix products of a forward pass; the backward pass takes twice as many.

    ``part``: the row of the table of FLOPs. ``kernels``: None for kernels whose work is not counted one by one.
    ``backward``: kernels of the backward pass, if they are others. ``once``: computed in the forward pass alone, also
    where layers are computed again, and not in the table. ``detached``: of inputs that no gradient goes to, so that the
    backward pass has the weights' products alone.
    """

    part: str
    flops: float
    kernels: Kernels | None = GEMM
    backward: Kernels | None = None
    once: bool = False
    detached: bool = False

    @property
    def backwards(self) -> int:
        """The backward pass's products over the forward pass's."""
        return 0 if self.once else 1 if self.detached else BACKWARD - 1


@dataclass(frozen=True)
class Kind(ABC):
    """One layer, or one end of the model, that is ``hidden`` channels wide at both sides."""

    hidden: int

    name: ClassVar[str]
    label: ClassVar[str]  # for people
    symbol: ClassVar[str] = ""  # in the pattern that Megatron's HybridModel takes
    # Of a layer: where its spec is made, "module:name"; the field of Megatron's hybrid submodules that takes the spec,
    # of some release or branch (``model.patched.dialect`` says where it lies in others); what the layer calls its norm,
    # and the rest
    spec: ClassVar[str] = ""
    slot: ClassVar[str] = ""
    inside: ClassVar[tuple[str, str]] = ("norm", "mixer")
    modules: ClassVar[tuple[str, ...]] = ()  # of an end: the first parts of its parameters' names
    groups: ClassVar[tuple[str, ...]]  # kinds of its parameters whose gradients' norm is measured; the first is usual
    # modules whose two-dimensional weights Muon takes, by the last part of their names
    matrices: ClassVar[frozenset[str]] = frozenset()
    # (part of a checkpoint's name, part of the name in safetensors), each whole between dots
    names: ClassVar[tuple[tuple[str, str], ...]] = ()
    # {a name in safetensors, from the layer on: the public model's names of its equal parts along the first axis}
    cuts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # What the public model's makers call it in their files: (part of the public model's name, part of theirs), and
    # {their name of all experts, from the layer on: the names of one expert's equal parts along the first axis}
    makers: ClassVar[tuple[tuple[str, str], ...]] = ()
    makers_experts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    buffers: ClassVar[frozenset[str]] = frozenset()  # tensors that a checkpoint keeps and that are no parameters
    tables: ClassVar[frozenset[str]] = frozenset()  # those of them that name experts by number
    numbered: ClassVar[str | None] = None  # the module of which safetensors have a tensor an expert, a checkpoint one
    has_logits: ClassVar[bool] = False  # attention, whose largest logit a diagnosis reads

    @property
    def slots(self) -> tuple[str, ...]:
        """Of the layers that it is made of."""
        return (self.slot,)

    @abstractmethod
    def parts(self) -> dict[str, Shapes]:
        """{row of the table of parameters: {name under the layer: shape}}."""

    @abstractmethod
    def products(self, seen: Seen) -> list[Products]:
        """The matrix products that are really computed for the tokens seen."""

    @abstractmethod
    def published(self, sequence: int) -> float:
        """FLOPs a token of a forward pass by ``hybrid_flops`` of Megatron-LM's training.py."""

    @abstractmethod
    def kept(self) -> float:
        """Bytes kept for the backward pass, most of them in bf16."""

    def workspace(self) -> float:
        """Bytes that the backward pass takes and gives back."""
        return 0

    def normed(self) -> int:
        """Channels that go through norms."""
        return self.hidden

    def experts(self) -> int:
        """Routed experts; 0 where nothing is routed."""
        return 0

    def dispatched(self) -> int:
        """Channels that are sent to routed experts, and that come back."""
        return 0

    def spread(self) -> int:
        """Parameters that expert-parallel ranks share among them, of all of ``number``."""
        return 0

    def idle(self) -> int:
        """Parameters that one token does not meet."""
        return 0

    def logits(self) -> int:
        """Logits of the vocabulary."""
        return 0

    def paced(self, tokens: float, row: int) -> dict[str, float]:
        """{kind of kernel: what its seconds grow with}, if not with FLOPs or bytes that are counted; rows of ``row``
        tokens run side by side."""
        return {}

    def group(self, name: str) -> str:
        """Which of ``groups`` the parameter ``name`` is in."""
        return self.groups[0]

    def shapes(self) -> Shapes:
        """{name under the layer: shape} of all that a checkpoint keeps, a layer's experts as one."""
        return {name: shape for found in self.parts().values() for name, shape in found.items()}

    def counts(self) -> dict[str, int]:
        """{row of the table of parameters: how many}."""
        return {
            part: sum(math.prod(shape) for name, shape in found.items() if name not in self.buffers)
            for part, found in self.parts().items()
        }

    def number(self) -> int:
        """Of parameters."""
        return sum(self.counts().values())


def under(prefix: str, found: Shapes) -> Shapes:
    """The same shapes with ``prefix`` before each name."""
    return {prefix + name: shape for name, shape in found.items()}
