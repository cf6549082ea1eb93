"""Which token comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchlane.base.errors import PatchlaneError

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Sampling:
    """A temperature of 0 takes the likeliest token. Above it one is drawn: of the ``top_k`` likeliest, and of these the
    fewest whose probabilities reach ``top_p`` together. Raises PatchlaneError for values that mean nothing."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise PatchlaneError(f"--temperature {self.temperature:g}", "--temperature 0 for the likeliest, or 0.8")
        if self.top_k is not None and self.top_k < 1:
            raise PatchlaneError(f"--top-k {self.top_k}", "--top-k 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise PatchlaneError(f"--top-p {self.top_p:g}", "--top-p above 0, up to 1")
        if self.temperature == 0 and (self.top_k, self.top_p) != (None, None):
            raise PatchlaneError("--top-k and --top-p are for a draw, and there is none", "--temperature 0.8 with them")


def choose(logits: Tensor, by: Sampling, generator: Generator) -> int:
    """A token by its ``logits`` [V]; of equally likely ones the first. ``generator``: of the host.

    Raises PatchlaneError for logits of which one is NaN or infinite, or none is likelier than -inf.
    """
    most = logits.max()  # NaN if one is
    if not most.isfinite():
        raise PatchlaneError(
            f"the model's largest logit is {float(most)}", "weights of an earlier checkpoint of the run"
        )
    if by.temperature == 0:
        return int(logits.argmax())
    below = logits.double().cpu() - most.double().cpu()  # a temperature near 0 makes them -inf, and the largest stays 0
    scores = (below / by.temperature).sort(descending=True, stable=True)
    shares = scores.values[: by.top_k].softmax(0)
    if by.top_p is not None:
        ahead = shares.cumsum(0) - shares  # of the likelier ones
        shares = shares.where(ahead < by.top_p, 0)
    return int(scores.indices[shares.multinomial(1, generator=generator)])
