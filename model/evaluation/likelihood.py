"""Log-likelihoods of tokens by the forward pass of training: many sequences packed into rows, each a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from model.layers.common.documents import positions

# (tokens int64 [T], positions int64 [T], cu_seqlens int32 [D+1], {field: int64 [T]}) -> logits [T, vocab]
Network = Callable[[Tensor, Tensor, Tensor, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Scored:
    """A document's tokens int64 [n], their columns {field: [n]}, empty without, and how many, the last ones, count."""

    ids: NDArray[Any]
    columns: dict[str, NDArray[Any]]
    count: int


@dataclass(frozen=True)
class Score:
    """``log_likelihood``: in nats, the sum over the tokens that count. ``greedy``: each is the likeliest one."""

    log_likelihood: float
    greedy: bool


@dataclass(frozen=True)
class Window:
    """Inputs ``low:high`` of a sequence; of the tokens after them the last ``count`` count."""

    low: int
    high: int
    count: int


def windows(length: int, count: int, most: int) -> list[Window]:
    """What the network reads, ``most`` tokens at a time, so that each of a sequence's last ``count`` counts once.

    One window with the most context there is where they fit into it. Else as lm-evaluation-harness rolls
    (``get_rolling_token_windows`` and ``make_disjoint_window``, lm_eval/utils.py of lm-eval 0.4.13): the first window
    begins with the token before those that count, each further one where the last ended, and the last one goes back
    for as much context as it has room for.
    """
    if count <= most:
        return [Window(max(length - 1 - most, 0), length - 1, count)] if count else []
    found, first = list[Window](), length - count
    while first < length:
        last = min(first + most, length)
        found.append(Window(last - 1 - most, last - 1, last - first))
        first = last
    return found


class Scorer:
    """A network over rows of ``sequence`` tokens. ``fields``: the side columns that it was trained with.

    A row is filled up with a document of which nothing counts: every pass has the shape of a micro-batch of one row.
    """

    def __init__(self, network: Network, sequence: int, fields: Sequence[str]) -> None:
        self.network, self.sequence, self.fields = network, sequence, fields

    @torch.no_grad()
    def __call__(self, sequences: Sequence[Scored], tell: Callable[[int], None] = lambda done: None) -> list[Score]:
        """A score each. ``tell`` is called with how many windows of them a pass was over."""
        sums, greedy = [0.0] * len(sequences), [True] * len(sequences)
        for row in self._rows(sequences):
            losses, hits = self._pass([(sequences[at], window) for at, window in row])
            for (at, _), loss, hit in zip(row, losses, hits, strict=True):
                sums[at] -= loss
                greedy[at] &= hit
            tell(len(row))
        return [Score(total, hit) for total, hit in zip(sums, greedy, strict=True)]

    def _rows(self, sequences: Sequence[Scored]) -> Iterator[list[tuple[int, Window]]]:
        """(sequence, window) in their order, as many at a time as a row holds."""
        row, room = list[tuple[int, Window]](), self.sequence
        for at, one in enumerate(sequences):
            for window in windows(len(one.ids), one.count, self.sequence):
                if (size := window.high - window.low) > room:
                    yield row
                    row, room = [], self.sequence
                row.append((at, window))
                room -= size
        if row:
            yield row

    def _pass(self, row: list[tuple[Scored, Window]]) -> tuple[list[float], list[bool]]:
        """Of each window the loss in nats, and whether its tokens are the likeliest."""
        bounds = np.cumsum([0, *(window.high - window.low for _, window in row)])
        ends = [bounds, [self.sequence]] if bounds[-1] < self.sequence else [bounds]
        cu_seqlens = torch.from_numpy(np.concatenate(ends).astype(np.int32))
        tokens = self._filled([one.ids[window.low : window.high] for one, window in row])
        fields = {name: self._filled([one.columns[name][w.low : w.high] for one, w in row]) for name in self.fields}
        logits = self.network(tokens, positions(cu_seqlens, self.sequence), cu_seqlens, fields)
        counts = [window.count for _, window in row]
        taken = np.concatenate([np.arange(end - n, end) for end, n in zip(bounds[1:].tolist(), counts, strict=True)])
        labels = np.concatenate([one.ids[w.high + 1 - w.count : w.high + 1] for one, w in row]).astype(np.int64)
        wanted, chosen = torch.from_numpy(labels).to(logits.device), logits[torch.from_numpy(taken).to(logits.device)]
        losses = cross_entropy(chosen if chosen.dtype == torch.float64 else chosen.float(), wanted, reduction="none")
        hits = chosen.argmax(-1) == wanted
        parts = zip(losses.double().cpu().split(counts), hits.cpu().split(counts), strict=True)
        summed = [(float(loss.sum()), bool(hit.all())) for loss, hit in parts]
        return [loss for loss, _ in summed], [hit for _, hit in summed]

    def _filled(self, parts: list[NDArray[Any]]) -> Tensor:
        """The parts one after the other, then zeros: int64 [sequence]."""
        row: NDArray[Any] = np.zeros(self.sequence, np.int64)
        joined = np.concatenate(parts)
        row[: len(joined)] = joined
        return torch.from_numpy(row)
