"""A row of tokens: its documents, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.alignment.nam56r.formulas.whole import Document
from model.families.nam56r import Size

DOCUMENTS = 2  # times so many tokens as one has are a row


@dataclass(frozen=True)
class Packed:
    """Tokens [T] and side columns [T], int64, of documents with bounds ``cu`` int32 [D+1]."""

    tokens: Tensor
    cu: Tensor
    fields: dict[str, Tensor]

    @property
    def spans(self) -> list[slice]:
        """Of the documents that have a token."""
        return [slice(first, end) for first, end in itertools.pairwise(self.cu.tolist()) if first < end]

    def ahead(self, by: int) -> Tensor:
        """The tokens that have one ``by`` ahead in their document."""
        return torch.tensor([s for span in self.spans for s in range(span.start, span.stop - by)])

    def documents(self, taken: Mapping[str, Tensor]) -> list[Document]:
        """One by one; ``taken``: {"layer.taken": choices [T, N] bool of the row's}, of keys those of the document."""

        def of(span: slice, choices: Tensor) -> Tensor:
            return choices[span, span] if choices.shape[1] == len(self.tokens) else choices[span]

        return [
            Document(
                self.tokens[span].tolist(),
                {name: column[span].tolist() for name, column in self.fields.items()},
                {name: of(span, choices) for name, choices in taken.items()},
            )
            for span in self.spans
        ]


def row(size: Size, tokens: int, variant: int, seed: int) -> Packed:
    """``DOCUMENTS`` as long as ``tokens``, or, of the second variant, one half as long again, one of one token, what is
    left of the row, and one of none, as padding makes them."""
    cuts = [tokens] if not variant else [tokens + tokens // 2, tokens + tokens // 2 + 1, 2 * tokens]
    rng, count = torch.Generator().manual_seed(seed), DOCUMENTS * tokens
    fields = {name: torch.randint(classes, (count,), generator=rng) for name, classes in size.structure.fields.items()}
    cu = torch.tensor([0, *cuts, count], dtype=torch.int32)
    return Packed(torch.randint(size.vocab, (count,), generator=rng), cu, fields)
