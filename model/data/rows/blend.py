"""Datasets blended by weight: which there are, and with which weights. ``turns`` has whose turn a row is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from model.data.errors import DataError
from model.data.stored.dataset import Dataset, DatasetRecord, Split, tokenizer
from model.data.stored.encoding import Encoding
from patchlane.base.files import json_sha256

SOURCE = re.compile(r"(?:(?P<weight>[^:=/]+):)?(?:(?P<name>[^:=/]+)=)?(?P<folder>.+)", re.S)
SYNTAX = "WEIGHT:FOLDER or WEIGHT:NAME=FOLDER"


@dataclass(frozen=True)
class Part:
    """A dataset with its name in a run and its weight; the weight is None where none was given."""

    name: str
    dataset: Dataset
    weight: Fraction | None = None

    def rows(self, split: Split, row: int) -> int:
        """Rows of ``row`` tokens that a split fills, each with the token after it."""
        return max(0, self.dataset.record.splits[split].tokens - 1) // row

    def held_out_rows(self, row: int) -> int:
        return self.rows("valid", row)


@dataclass(frozen=True)
class Blend:
    """All that a run reads: ``parts`` to train on, whose weights sum to 1, and further sets to evaluate on.

    Made by ``of``: all have the same tokenizer and fields, and names of their own.
    """

    parts: tuple[Part, ...]
    held_out: tuple[Part, ...] = ()

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """Each part's weight."""
        return tuple(part.weight or Fraction(1) for part in self.parts)

    @property
    def record(self) -> DatasetRecord:
        """Of the first dataset: tokenizer and fields are those of all."""
        return self.parts[0].dataset.record

    @property
    def digest(self) -> str:
        """The dataset's, or of all digests and weights in their order where there are several."""
        if len(self.parts) == 1:
            return self.record.digest
        return json_sha256([[part.dataset.record.digest, str(share)] for part, share in self._shared()])

    @property
    def encoding(self) -> Encoding:
        """How the text of all became tokens; its language is "text" where theirs are not one."""
        every = [Encoding.of(part.dataset.record) for part in self.parts]
        language = every[0].language if len({one.language for one in every}) == 1 else "text"
        return every[0].model_copy(update={"language": language})

    @property
    def tokenizer(self) -> bytes | None:
        """The tokenizer's file, of the first dataset that has it; None of bytes, and where none has it."""
        found = (tokenizer(part.dataset.folder) for part in self.parts)
        return next((content for content in found if content is not None), None)

    @property
    def unigram_entropy(self) -> float | None:
        """The training split's, in nats a token; None where there are several datasets."""
        return self.record.splits["train"].unigram_entropy if len(self.parts) == 1 else None

    def described(self) -> list[dict[str, str | float | None]]:
        """{name, weight, digest, unigram_entropy} of each part, in plain JSON values."""
        return [
            {
                "name": part.name,
                "weight": float(share),
                "digest": part.dataset.record.digest,
                "unigram_entropy": part.dataset.record.splits["train"].unigram_entropy,
            }
            for part, share in self._shared()
        ]

    def evaluated(self, row: int) -> dict[str | None, Blend]:
        """What is evaluated on, by name: None, the whole; where there are several, each part; each further set.

        What does not fill a row of ``row`` tokens is none of them, and no part of the whole.
        """
        parts = [part for part in self.parts if part.held_out_rows(row)]
        total = sum((part.weight or Fraction(1) for part in parts), Fraction(0))
        whole = tuple(Part(part.name, part.dataset, (part.weight or Fraction(1)) / total) for part in parts)
        found: dict[str | None, Blend] = {None: Blend(whole)} if whole else {}
        each = [*(parts if len(self.parts) > 1 else []), *self.held_out]
        return found | {part.name: Blend((Part(part.name, part.dataset),)) for part in each}

    def unevaluated(self, row: int) -> list[Part]:
        """The parts whose held-out split does not fill a row of ``row`` tokens."""
        return [part for part in self.parts if not part.held_out_rows(row)]

    def _shared(self) -> list[tuple[Part, Fraction]]:
        return list(zip(self.parts, self.shares, strict=True))


def part(text: str) -> Part:
    """The part that ``[WEIGHT:][NAME=]FOLDER`` names; a folder's own name where none is given.

    Raises DataError for a weight that is no number above 0, and for a folder that holds no whole dataset.
    """
    found = SOURCE.fullmatch(text)
    if found is None:
        raise DataError("the name of a dataset is empty", SYNTAX)
    weight, folder = found["weight"], Path(found["folder"])
    try:
        share = Fraction(weight) if weight is not None else None
    except (ValueError, ZeroDivisionError) as error:
        raise DataError(f"{text}: {weight!r} is no weight", SYNTAX) from error
    if share is not None and share <= 0:
        raise DataError(f"{text}: a weight of {weight}", "a weight above 0, or leave the dataset out")
    return Part(found["name"] or folder.resolve().name, Dataset(folder), share)


def of(parts: Sequence[Part], held_out: Sequence[Part] = ()) -> Blend:
    """The parts blended, their weights divided by their sum; ``held_out`` is evaluated on only.

    Raises DataError if several parts lack a weight, two have one name or one content, or tokenizer or fields differ.
    """
    if len(parts) > 1 and (bare := next((part for part in parts if part.weight is None), None)):
        raise DataError(f"{bare.dataset.folder} has no weight, and there are {len(parts)} datasets", f"--data {SYNTAX}")
    if weighed := next((part for part in held_out if part.weight is not None), None):
        raise DataError(f"{weighed.name} is evaluated on by itself: it has no weight", "--held-out NAME=FOLDER")
    every = [*parts, *held_out]
    names = [part.name for part in every if len(parts) > 1 or part in held_out]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"two datasets are called {twice}", "give them names: WEIGHT:NAME=FOLDER, NAME=FOLDER")
    digests = [part.dataset.record.digest for part in parts]
    if again := next((part for part in parts if digests.count(part.dataset.record.digest) > 1), None):
        raise DataError(f"{again.name} is blended with itself", "name it once, with the sum of its weights")
    for other in every[1:]:
        _alike(every[0].dataset, other.dataset)
    total = sum((part.weight or Fraction(1) for part in parts), Fraction(0))
    shared = (Part(part.name, part.dataset, (part.weight or Fraction(1)) / total) for part in parts)
    return Blend(tuple(shared), tuple(held_out))


def _alike(one: Dataset, other: Dataset) -> None:
    """Raise DataError if the datasets' tokenizers or side columns differ."""
    for what in ("tokenizer", "fields"):
        mine, its = getattr(one.record, what), getattr(other.record, what)
        if mine != its:
            raise DataError(
                f"{other.folder} has another {what.removesuffix('s')} than {one.folder}: {its or 'none'}, not {mine}",
                "python -m model.data build both with the same --tokenizer, --eod and --structure",
            )
