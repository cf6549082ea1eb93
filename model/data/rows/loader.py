"""Batches of packed rows for one data-parallel rank, resumable on any number of ranks.

Of one dataset, global sample g is row g mod R of epoch g div R (R rows an epoch). Of several, g is the next sample of
the dataset whose turn it is (turns.py), which so repeats by epochs of its own. A step takes the next micro_batch ×
world samples; its sample i goes to rank i mod world. So at a fixed number of samples a step, all ranks together see the
same rows whatever the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model.data.columns.structure import DEFAULT_FIELDS
from model.data.errors import DataError
from model.data.rows import left_out
from model.data.rows.blend import Blend, Part
from model.data.rows.packing import Packing, Spans
from model.data.rows.turns import Turns
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
    """An endless iterator of this rank's batches of a dataset or a blend. ``consumed`` counts the samples of all ranks.

    ``structure``: side columns to carry; None for the causal ones if the dataset has them, () for none. Fields that
    are not causal tell a token about the text after it (structure.CAUSAL): with them the loss is not a likelihood.
    ``document_multiple``: cu_seqlens is padded with empty documents at T to a multiple of this many, so that its shape
    varies less; consumers must then accept empty documents.
    Raises DataError if rank, world or a size is out of range, or if the split does not fill a row.
    """

    def __init__(
        self,
        data: Dataset | Blend,
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
        self.blend = data if isinstance(data, Blend) else Blend((Part(data.folder.name, data),))
        self.split, self.sequence_length, self.seed = split, sequence_length, seed
        self.micro_batch, self.rank, self.world, self.document_multiple = micro_batch, rank, world, document_multiple
        self.fields = _fields(self.blend, structure)
        several = len(self.blend.parts) > 1
        self._sources = [
            _Source(part, split, sequence_length, _seed(seed, part) if several else seed, self.fields)
            for part in self.blend.parts
        ]
        self._turns = Turns(self.blend.shares)
        self.consumed = 0
        self.left_out: left_out.Spans = []  # samples that are never taken, and not counted in ``consumed``

    @property
    def rows(self) -> int:
        """Global samples in an epoch; of a blend those before a dataset repeats."""
        return self._before_a_repeat(sum(source.rows for source in self._sources))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        samples = range(self.consumed + self.rank, self.consumed + self.micro_batch * self.world, self.world)
        batch = self._batch([self._row(left_out.place(sample, self.left_out)) for sample in samples])
        self.consumed += self.micro_batch * self.world
        return batch

    def first(self, rows: int) -> list[Batch]:
        """This rank's batches of the first ``rows`` samples of all ranks, or of an epoch's where it has fewer.

        Every rank has as many batches, of one shape: samples past the last one are there, and none of their tokens
        counts. The iterator goes on after them.
        """
        rows, found, self.consumed = self._before_a_repeat(rows), [], 0
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

    def _before_a_repeat(self, most: int) -> int:
        """Samples before one that a dataset has given already, counted to ``most``."""
        places = ((number, *self._turns.at(number)) for number in range(most))
        return next((number for number, at, sample in places if sample >= self._sources[at].rows), most)

    def _row(self, sample: int) -> _Row:
        """Global sample ``sample``."""
        at, own = self._turns.at(sample)
        return self._sources[at].row(own)

    def state_dict(self) -> dict[str, Any]:
        """State for ``load_state_dict``, in plain JSON values, the same on every rank."""
        spans = {"left_out": [[*span] for span in self.left_out]} if self.left_out else {}
        turns = {"drawn": self._turns.drawn(self._taken)} if len(self._sources) > 1 else {}
        return {"version": STATE_VERSION, "consumed": self.consumed, **spans, **turns, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken; rank, world and micro-batch may differ.

        Raises DataError if it belongs to other datasets or weights, another split, sequence length or seed.
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
        if "drawn" in state and len(self._sources) > 1:  # checkpoints of before do not have it
            self._turns.restore(self._taken, state["drawn"])

    @property
    def _taken(self) -> int:
        """The number of the next sample to take: how many were taken or are left out."""
        return left_out.place(self.consumed, self.left_out)

    def _identity(self) -> dict[str, Any]:
        weights = {"weights": [str(share) for share in self.blend.shares]} if len(self._sources) > 1 else {}
        return {
            **weights,
            "dataset": self.blend.digest,
            "split": self.split,
            "sequence_length": self.sequence_length,
            "seed": self.seed,
        }

    def _batch(self, rows: list[_Row]) -> Batch:
        length = self.sequence_length
        tokens = np.stack([row.tokens for row in rows]).astype(np.int64)  # [rows, S + 1]
        begins = [row.begins for row in rows]  # [k] each
        mask: NDArray[Any] = np.ones((len(rows), length), np.float32)
        for at, places in enumerate(begins):
            mask[at, places[1:] - 1] = 0.0
        starts = np.concatenate([places[places < length] + at * length for at, places in enumerate(begins)])  # [D]
        total = len(rows) * length
        sizes = np.diff(starts, append=total)  # [D]
        padding = -len(starts) % self.document_multiple
        columns = [np.concatenate([row.columns[at][:-1] for row in rows]) for at in range(len(self.fields))]  # [T] each
        return Batch(
            tokens=torch.from_numpy(tokens[:, :-1].reshape(-1)),
            labels=torch.from_numpy(tokens[:, 1:].reshape(-1)),
            loss_mask=torch.from_numpy(mask.reshape(-1)),
            positions=torch.from_numpy(np.arange(total) - np.repeat(starts, sizes)),
            cu_seqlens=torch.from_numpy(np.append(starts, [total] * (1 + padding)).astype(np.int32)),
            max_seqlen=int(sizes.max()),
            structure=torch.from_numpy(np.stack(columns, axis=1).astype(np.int64)) if columns else None,
        )


class _Row(NamedTuple):
    """``tokens`` [S + 1]; ``columns`` [S + 1] each; ``begins`` int64 [k]: where the row's k documents begin in it."""

    tokens: NDArray[Any]
    columns: list[NDArray[Any]]
    begins: NDArray[Any]


class _Source:
    """A split of one dataset, packed."""

    def __init__(self, part: Part, split: Split, sequence_length: int, seed: int, fields: Sequence[str]) -> None:
        source = part.dataset.tokens(split)
        self._tokens = source.tokens
        self._columns = [part.dataset.column(split, name).tokens for name in fields]
        try:
            self._packing = Packing(source.bounds, sequence_length, seed)
        except DataError as error:
            raise DataError(f"{part.name}, {split}: {error.what}", error.remedy) from error
        self.rows = self._packing.rows

    def row(self, sample: int) -> _Row:
        """This dataset's sample number ``sample``, counted over epochs."""
        spans: Spans = self._packing.row(*divmod(sample, self.rows))
        return _Row(spans.gather(self._tokens), [spans.gather(column) for column in self._columns], spans.begins())


def _seed(seed: int, part: Part) -> int:
    """Of a dataset among several: two with as many documents are not to be shuffled alike."""
    return seed ^ (int(part.dataset.record.digest[:16], 16) >> 1)


def _fields(blend: Blend, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The side columns to carry; a dataset without any has none by default."""
    if chosen is not None:
        return tuple(chosen)
    return DEFAULT_FIELDS if blend.record.fields else ()
