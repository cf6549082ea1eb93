"""A run's records, each a line of ``metrics.jsonl``; they are read and checked only here.

Times are seconds, memory GiB, losses nats a token. A value that is not finite is the JSON string "NaN", "Infinity" or
"-Infinity": every line stays JSON (RFC 8259) and a bad step can still be recorded.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Value = str | int | float | bool | None
ENTROPY = "unigram_entropy"  # detail of the event "dataset": nats a token: the least loss of a model without context


class Phases(BaseModel):
    """Seconds of a step, on this rank's clock. ``data``: as far as they were not read beside the step before."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    data: float = Field(ge=0)
    forward_backward: float = Field(ge=0)
    optimizer: float = Field(ge=0)
    other: float = Field(default=0.0, ge=0)

    @property
    def total(self) -> float:
        return self.data + self.forward_backward + self.optimizer + self.other


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    schema_version: Literal[1] = 1
    time: float = Field(default_factory=time.time)  # Unix, when the record was made
    step: int = Field(ge=0)  # optimizer steps done


class Train(_Record):
    """One optimizer step. ``loss`` is the main language-model loss, the mean over masked-in tokens of all ranks."""

    kind: Literal["train"] = "train"
    tokens: int = Field(ge=0)  # seen since step 0, by all ranks; in the oldest runs as if every step had been like this
    loss: float
    mtp_loss: float | None = None
    aux_loss: float | None = None  # MoE load balancing
    indexer_loss: float | None = None
    grad_norm: float  # before clipping
    learning_rate: float
    tokens_per_s_per_gpu: float
    tflops_megatron: float  # TFLOP/s of a GPU by Megatron's formula (model/definition/flops.py)
    tflops_built: float  # TFLOP/s of a GPU by the matrix products really built
    gpu: str | None = None  # its name by the driver; None on a CPU
    mfu: float | None = None  # tflops_built over that GPU's dense bf16 peak
    peak_gib: float | None = None  # allocated at most since the step before, on the fullest rank
    peaks_gib: list[float] | None = None  # of each rank; None in the oldest kept runs, whose peak_gib is rank 0's
    reserved_gib: float | None = None  # of rank 0
    expert_load: float | None = None  # tokens of a layer's fullest expert over the mean, mean over layers
    rank_load: float | None = None  # tokens of a layer's fullest expert-parallel rank over the mean, mean over layers
    seconds: Phases
    skipped: bool = False  # no update was made: a loss or gradient was not finite or, with on_spike skip, spiked

    @property
    def finite(self) -> bool:
        """Whether loss and gradient norm are numbers and the step was taken."""
        return not self.skipped and abs(self.loss) < float("inf") and abs(self.grad_norm) < float("inf")


class Valid(_Record):
    """Held-out loss after ``step`` steps, over ``tokens`` masked-in tokens.

    ``name``: of one dataset of a blend, or of a further held-out set; None for the run's data as a whole.
    """

    kind: Literal["valid"] = "valid"
    name: str | None = None
    tokens: int = Field(ge=0)
    loss: float
    mtp_loss: float | None = None
    seconds: float = Field(ge=0)


class Diagnosis(_Record):
    """What every ``diagnose_every``-th step measures, over all ranks. Layers by number, depths of MTP as "MTP-1"."""

    kind: Literal["diagnosis"] = "diagnosis"
    router_load: dict[str, float]  # of an MoE layer: tokens of its fullest expert over the mean
    attention_logits: dict[str, float]  # of an attention layer: the largest, scaled; DSA's choice may leave its key out
    gradient_norms: dict[str, float]  # by kind of parameter, before clipping
    rank_seconds: list[float] = []  # each rank's own seconds a step, up to where it waits, since the diagnosis before

    @property
    def slowest(self) -> int | None:
        """The rank with the most seconds of its own; None where there are none."""
        return max(range(len(self.rank_seconds)), key=self.rank_seconds.__getitem__) if self.rank_seconds else None


class Event(_Record):
    """A named event: "checkpoint", "resumed", "changed", "dataset", "blended", "skip", "rewind", "straggler", …"""

    kind: Literal["event"] = "event"
    name: str
    detail: dict[str, Value] = Field(default_factory=dict)


Record = Train | Valid | Diagnosis | Event
_any: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def to_line(record: Record) -> bytes:
    """One line of JSON with its line feed."""
    return record.model_dump_json().encode() + b"\n"


def from_line(line: bytes) -> Record:
    """The record of a line. Raises pydantic's ValidationError, a ValueError, if it is none."""
    return _any.validate_json(line)
