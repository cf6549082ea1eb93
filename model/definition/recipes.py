"""Recipes named for the hardware that they were run on; ``verified`` says by which receipt, or that none exists yet."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Recipe(BaseModel):
    """All that a run needs beside its size's definition. Rows are of the size's sequence length unless ``sequence``.

    AdamW with betas and decoupled weight decay, linear warm-up then cosine to ``floor`` of the peak, clipping by the
    global gradient norm.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: str
    ranks: int = 1
    steps: int = 100
    micro_batch: int = 1  # rows a rank holds at a time
    accumulate: int = 1  # micro-batches of a rank in a step
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    bf16: bool = True
    sequence: int | None = None
    learning_rate: float = 1e-4
    warmup: int = 100  # steps; the last one's rate is the peak
    floor: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    evaluate_every: int = 50
    evaluate_rows: int = 64  # held-out rows, the same in every layout
    save_every: int = 100  # steps; 0: no checkpoint at all, not at the end either
    verified: str = ""

    @property
    def warmup_taken(self) -> int:
        """Steps of warm-up that a run takes: at least its last step is not of it."""
        return min(self.warmup, self.steps - 1)

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
            verified="make train on two CPU cores: held-out loss 2.23",
        ),
        Recipe(
            name="1xh200_quarter",
            size="nam56r_quarter",
            steps=100,
            micro_batch=4,
            verified="one NVIDIA H200: receipts/train/1xh200_quarter_20261121",
        ),
        Recipe(
            name="2xh200_bf16",
            size="nam56r",
            ranks=2,
            steps=50,
            micro_batch=3,
            expert_parallel=2,
            verified="two NVIDIA H200: receipts/train/2xh200_nam56r_20261121",
        ),
        Recipe(
            name="2xh200_wide",
            size="nam56r_wide",
            ranks=2,
            steps=50,
            micro_batch=3,  # every rank holds all experts: 118.8 GiB, faster than tokens that travel
            verified="two NVIDIA H200: receipts/train/2xh200_wide_ep1_20261122",
        ),
        Recipe(
            name="4xh200_bf16",
            size="nam56r",
            ranks=4,
            steps=50,
            micro_batch=4,
            expert_parallel=4,
            verified="four NVIDIA H200: receipts/train/4xh200_nam56r_ranks_20261122",
        ),
        Recipe(
            name="4xh200_wide",
            size="nam56r_wide",
            ranks=4,
            steps=50,
            micro_batch=4,
            expert_parallel=4,
            verified="four NVIDIA H200: receipts/train/4xh200_wide_230_20261122",
        ),
        Recipe(name="8xh200_bf16", size="nam56r", ranks=8, steps=50, micro_batch=4, expert_parallel=8),
    )
}


def for_size(size: str) -> Recipe:
    """The first recipe for a size, or its defaults where none is for it."""
    return next((recipe for recipe in RECIPES.values() if recipe.size == size), Recipe(name="", size=size))
