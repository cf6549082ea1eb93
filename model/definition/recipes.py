"""Recipes named for the hardware that they are for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from model.families.family import Family
from model.families.sizes import SIZES, named
from patchlane.base.errors import PatchlaneError

MOST = 10**9  # of any count: its days are a time that Python has, its tokens an integer of 64 bits
Count = Annotated[int, Field(ge=1, le=MOST)]
Interval = Annotated[int, Field(ge=0, le=MOST)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Optimizer = Literal["adamw", "muon"]
# A checkpoint's content does not depend on these, nor do losses: they may differ on resume without a word. What
# ``run_record.Batching`` compares, and the size, are not here either.
SILENT = ("name", "ranks", "evaluate_every", "evaluate_rows", "save_every", "keep", "diagnose_every")
COMPARED_ELSEWHERE = ("size", "micro_batch", "accumulate", "bf16", "expert_parallel", "pipeline_parallel", "sequence")


class Recipe(BaseModel):
    """All that a run needs beside its size's definition: every hyperparameter, with its bounds.

    AdamW with betas and decoupled weight decay, or Muon beside it, linear warm-up then ``schedule`` to ``floor`` of the
    peak, clipping by the global gradient norm. A field that is None is the size's (``whole``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = ""
    size: str
    ranks: Count = 1
    steps: Count = 100
    micro_batch: Count = 1  # rows a rank holds at a time
    accumulate: Count = 1  # micro-batches of a rank in a step
    expert_parallel: Count = 1
    pipeline_parallel: Count = 1
    bf16: bool = True
    sequence: Annotated[int, Field(ge=16, le=MOST)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0  # of the rows' order
    init_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1234  # of the first weights
    learning_rate: Annotated[float, Field(ge=0, le=1)] = 1e-4
    warmup: Interval = 100  # steps; the last one's rate is the peak
    schedule: Literal["cosine", "linear", "constant", "inverse-square-root", "WSD"] = "cosine"  # Megatron's names
    decay_steps: Count | None = None  # of "WSD" alone: the last steps, in which the rate falls
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1
    optimizer: Optimizer = "adamw"  # Muon takes the matrices of hidden layers, AdamW all else
    muon_momentum: Share = 0.95
    muon_steps: Annotated[int, Field(ge=1, lt=100)] = 5  # of Newton-Schulz, which makes a matrix orthogonal
    betas: tuple[Share, Share] = (0.9, 0.95)
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.1
    clip: Positive = 1.0
    mtp_loss_coeff: NotNegative | None = None
    aux_loss_coeff: NotNegative | None = None  # of the routers' load balancing
    bias_update_rate: NotNegative | None = None  # of the routers' selection bias
    indexer_loss_coeff: Positive | None = None  # the loss that is reported is divided by it
    evaluate_every: Count = 50
    evaluate_rows: Count = 64  # held-out rows, the same in every layout
    diagnose_every: Interval = 10  # steps; 0: never. It waits for nothing that a step does not
    save_every: Interval = 100  # steps; 0: no checkpoint at all, not at the end either
    keep: Count = 2  # newest checkpoints that stay; while one is written there is one more
    on_spike: Literal["stop", "skip", "rewind"] = "stop"  # what a loss or norm does that spikes or is not finite
    # Of 2,818 losses of the longer runs of nam56r_quarter and nam56r_wide (receipts/train) none is more than 5.3 median
    # absolute deviations above the median of the 64 before it; over 16 before it one is 19.
    spike_window: Annotated[int, Field(ge=4, le=MOST)] = 64  # losses whose median and deviation are taken
    spike_factor: Positive = 10.0  # deviations above the median: 6.7 standard deviations of a normal distribution
    max_rewinds: Count = 3  # in a run
    max_skips: Count = 10  # one after the other

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, field: ValidationInfo) -> object:
        """Refuse true and false, which pydantic takes for 1 and 0, where a number is wanted. Numbers may be text: to
        YAML 1e-2 is."""
        held = value if isinstance(value, (list, tuple)) else [value]
        if field.field_name != "bf16" and any(isinstance(one, bool) for one in held):
            raise ValueError("true or false, and no number")
        return value

    @model_validator(mode="after")
    def _goes_back(self) -> Recipe:
        if self.on_spike == "rewind" and not self.save_every:
            raise ValueError("on_spike: rewind goes back to a checkpoint, and save_every is 0")
        return self

    @model_validator(mode="after")
    def _schedules(self) -> Recipe:
        if (self.schedule == "WSD") != (self.decay_steps is not None):
            raise ValueError("decay_steps: of schedule WSD, which needs them, and of no other")
        if self.decay_steps is not None and self.decay_steps > self.steps - self.warmup_taken:
            raise ValueError("decay_steps: more than the steps after the warm-up")
        return self

    @property
    def on_gpus(self) -> bool:
        """Whether it is for GPUs: a recipe for CPUs has a name that says so."""
        return not self.name.startswith("cpu_")

    @property
    def warmup_taken(self) -> int:
        """Steps of warm-up that a run takes: at least its last step is not of it."""
        return min(self.warmup, self.steps - 1)

    def sized(self) -> Family:
        """The definition of its size, with the recipe's coefficients in place of the size's. Raises PatchlaneError if
        there is none."""
        size = named(self.size)
        return size.with_coefficients({field: getattr(self, field) for field in size.coefficients_at})

    def whole(self) -> Recipe:
        """The recipe that a run takes: what it leaves to its size is written out."""
        size = self.sized()
        return self.changed(sequence=self.sequence or size.sequence, **size.coefficients)

    def hyperparameters(self) -> dict[str, str | int | float]:
        """{field: value} of all that decides what a step learns, None left out; a pair is text."""
        left_out = {*SILENT, *COMPARED_ELSEWHERE}
        if self.optimizer == "adamw":  # as before there was another
            left_out |= {"optimizer", "muon_momentum", "muon_steps"}
        values = self.model_dump(mode="json", exclude=left_out, exclude_none=True)
        return {name: ", ".join(map(str, v)) if isinstance(v, list) else v for name, v in values.items()}

    def changed(self, **values: object) -> Recipe:
        """With the values that are not None in place of the recipe's."""
        return self.model_validate(self.model_dump() | {name: v for name, v in values.items() if v is not None})


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="cpu_tiny",
            size="nam56r_tiny",
            steps=192,
            micro_batch=1,  # attention's work grows with the square of a micro-batch's tokens
            accumulate=2,
            bf16=False,
            learning_rate=2.5e-3,
            warmup=16,
            evaluate_every=64,
            evaluate_rows=32,
            save_every=96,
        ),
        Recipe(
            name="1xh200_quarter",
            size="nam56r_quarter",
            steps=100,
            micro_batch=4,
        ),
        Recipe(
            name="2xh200_bf16",
            size="nam56r",
            ranks=2,
            steps=50,
            micro_batch=3,
            expert_parallel=2,
        ),
        Recipe(
            name="2xh200_wide",
            size="nam56r_wide",
            ranks=2,
            steps=50,
            micro_batch=3,  # every rank holds all experts: 123 GiB, faster than tokens that travel
        ),
        Recipe(
            name="4xh200_bf16",
            size="nam56r",
            ranks=4,
            steps=50,
            micro_batch=4,
            expert_parallel=4,
        ),
        Recipe(
            name="4xh200_wide",
            size="nam56r_wide",
            ranks=4,
            steps=50,
            micro_batch=4,
            expert_parallel=4,
        ),
        Recipe(name="8xh200_wide", size="nam56r_wide", ranks=8, steps=50, micro_batch=3),
        Recipe(name="8xh200_bf16", size="nam56r", ranks=8, steps=50, micro_batch=4, expert_parallel=8),
    )
}


def for_size(size: str) -> Recipe:
    """The first recipe for a size, or its defaults where none is for it."""
    return next((recipe for recipe in RECIPES.values() if recipe.size == size), Recipe(name="", size=size))


def known(name: str, offered: Iterable[str] = SIZES) -> None:
    """Raise PatchlaneError if neither a size nor a recipe is called ``name``: with the nearest names, and all that are
    ``offered``."""
    if name not in SIZES and name not in RECIPES:
        near = difflib.get_close_matches(name, [*RECIPES, *offered])
        meant = f": is it {' or '.join(near)}?" if near else ""
        raise PatchlaneError(
            f"no size is named {name!r}, and no recipe{meant}",
            f"choose one of: {', '.join(offered)}; or of the recipes: {', '.join(RECIPES)}",
        )
