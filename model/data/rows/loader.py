"""Batches of packed rows for one data-parallel rank, resumable on any number of ranks.

Global sample g is row g mod R of epoch g div R (R rows an epoch). A step takes the next micro_batch × world samples;
its sample i goes to rank i mod world. So at a fixed number of samples a step, all ranks together see the same rows
whatever the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.data.columns.structure import DEFAULT_FIELDS
from model.data.errors import DataError
from model.data.rows import left_out
from model.data.rows.packing import Packing, Spans
from model.data.stored.dataset import Dataset, Split

STATE_VERSION = 2  # raise it when the same state begins to mean other rows


@dataclass(frozen=True)
class Batch:
    """One flat stream of T = micro_batch × sequence_length tokens; a row's start is a document's start as well.

    ``tokens``, ``labels``, ``positions`` int64 [T]; positions count from 0 in each document.
    ``loss_mask`` float32 [T]: 0 where the label is the first token of another document (the EOD inputs), else 1.
    ``cu_seqlens`` int32 [D+1]: where documents begin, then T (more than once when the loader pads them).
    ``max_seqlen``: tokens of the longest document, known without asking the device.
    ``structure`` int64 [T, fields], in the order of the loader's ``fields``; None without.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int
    structure: torch.Tensor | None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on ``device``."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory, from which ``to(..., non_blocking=True)`` overlaps."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: change(v) for k, v in tensors.items() if isinstance(v, torch.Tensor)})


class Loader:
    """An endless iterator of this rank's batches. ``consumed`` counts the samples of all ranks.

    ``structure``: side columns to carry; None for the causal ones if the dataset has them, () for none. Fields that
    are not causal tell a token about the text after it (structure.CAUSAL): with them the loss is not a likelihood.
    ``document_multiple``: cu_seqlens is padded with empty documents at T to a multiple of this many, so that its shape
    varies less; consumers must then accept empty documents.
    Raises DataError if rank, world or a size is out of range, or if the split does not fill a row.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        sequence_length: int,
        micro_batch: int,
        rank: int = 0,
        world: int = 1,
        seed: int = 0,
        *,
        structure: Sequence[str] | None = None,
        document_multiple: int = 1,
    ) -> None:
        if not 0 <= rank < world:
            raise DataError(f"rank {rank} of a world of {world}", "0 <= rank < world")
        if micro_batch < 1 or document_multiple < 1:
            raise DataError(f"micro-batch {micro_batch}, document multiple {document_multiple}", "1 or more of each")
        self.dataset, self.split, self.sequence_length = dataset, split, sequence_length
        self.micro_batch, self.rank, self.world, self.document_multiple = micro_batch, rank, world, document_multiple
        self.fields = _fields(dataset, structure)
        source = dataset.tokens(split)
        self._tokens = source.tokens
        self._columns = [dataset.column(split, name).tokens for name in self.fields]
        self._packing = Packing(source.bounds, sequence_length, seed)
        self.consumed = 0
        self.left_out: left_out.Spans = []  # samples that are never taken, and not counted in ``consumed``

    @property
    def rows(self) -> int:
        """Global samples in an epoch."""
        return self._packing.rows

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        samples = range(self.consumed + self.rank, self.consumed + self.micro_batch * self.world, self.world)
        places = (left_out.place(sample, self.left_out) for sample in samples)
        batch = self._batch([self._packing.row(*divmod(place, self.rows)) for place in places])
        self.consumed += self.micro_batch * self.world
        return batch

    def first(self, rows: int) -> list[Batch]:
        """This rank's batches of the first ``rows`` samples of all ranks, or of an epoch's where it has fewer.

        Every rank has as many batches, of one shape: samples past the last one are there, and none of their tokens
        counts. The iterator goes on after them.
        """
        rows, found, self.consumed = min(rows, self.rows), [], 0
        while (began := self.consumed) < rows:
            batch = next(self)
            past = began + self.rank + torch.arange(self.micro_batch) * self.world >= rows  # [micro_batch]
            batch.loss_mask.view(self.micro_batch, -1)[past] = 0
            found.append(batch)
        return found

    def leave_out(self, consumed: int) -> tuple[int, int]:
        """Go back to ``consumed`` and never take again what was taken since: [first, behind the last) by number."""
        span = left_out.place(consumed, self.left_out), left_out.place(self.consumed, self.left_out)
        self.consumed, self.left_out = consumed, left_out.merged([*self.left_out, span])
        return span

    def state_dict(self) -> dict[str, Any]:
        """State for ``load_state_dict``, in plain JSON values, the same on every rank."""
        spans = {"left_out": [[*span] for span in self.left_out]} if self.left_out else {}
        return {"version": STATE_VERSION, "consumed": self.consumed, **spans, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; rank, world and micro-batch may differ.

        Raises DataError if it belongs to another dataset, split, sequence length or seed.
        """
        expected = {"version": STATE_VERSION, **self._identity()}
        for name, value in expected.items():
            if state.get(name) != value:
                raise DataError(
                    f"loader state: its {name} is {state.get(name)!r}, this loader's is {value!r}",
                    f"resume with the {name} that the run began with, or start a new run",
                )
        if not isinstance(state.get("consumed"), int) or state["consumed"] < 0:
            raise DataError(f"loader state: consumed is {state.get('consumed')!r}, not a count of samples")
        self.consumed = state["consumed"]
        self.left_out = [(first, last) for first, last in state.get("left_out", [])]

    def _identity(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.record.digest,
            "split": self.split,
            "sequence_length": self.sequence_length,
            "seed": self._packing.seed,
        }

    def _batch(self, rows: list[Spans]) -> Batch:
        length = self.sequence_length
        tokens = np.stack([row.gather(self._tokens) for row in rows]).astype(np.int64)  # [rows, S + 1]
        begins = [row.begins() for row in rows]  # [k] each
        mask: NDArray[Any] = np.ones((len(rows), length), np.float32)
        for at, places in enumerate(begins):
            mask[at, places[1:] - 1] = 0.0
        starts = np.concatenate([places[places < length] + at * length for at, places in enumerate(begins)])  # [D]
        total = len(rows) * length
        sizes = np.diff(starts, append=total)  # [D]
        padding = -len(starts) % self.document_multiple
        columns = [np.concatenate([row.gather(column)[:-1] for row in rows]) for column in self._columns]  # [T] each
        return Batch(
            tokens=torch.from_numpy(tokens[:, :-1].reshape(-1)),
            labels=torch.from_numpy(tokens[:, 1:].reshape(-1)),
            loss_mask=torch.from_numpy(mask.reshape(-1)),
            positions=torch.from_numpy(np.arange(total) - np.repeat(starts, sizes)),
            cu_seqlens=torch.from_numpy(np.append(starts, [total] * (1 + padding)).astype(np.int32)),
            max_seqlen=int(sizes.max()),
            structure=torch.from_numpy(np.stack(columns, axis=1).astype(np.int64)) if columns else None,
        )


def _fields(dataset: Dataset, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The side columns to carry; a dataset without any has none by default."""
    if chosen is not None:
        return tuple(chosen)
    return DEFAULT_FIELDS if dataset.record.fields else ()
