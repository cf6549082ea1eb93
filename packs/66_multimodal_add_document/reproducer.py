# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""A multimodal IndexedDatasetBuilder ends in a TypeError where add_document is not told modes, which may be left out.

A document is a row of numbers with the lengths of its items; a multimodal one has a mode an item as well, 0 by default.
``add_document`` multiplies a list by the list of lengths for it. By then the document's numbers and lengths are
written, so that a caller who catches the error and goes on has more lengths than modes.
"""

from __future__ import annotations

import itertools
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from reproducers import probe


def minimal() -> None:
    """A document of two items."""
    import tempfile

    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    with tempfile.TemporaryDirectory() as folder:
        builder = IndexedDatasetBuilder(f"{folder}/made.bin", multimodal=True)
        builder.add_document(torch.arange(6), [2, 4])
        print("modes:", builder.sequence_modes)
        assert builder.sequence_modes == [0, 0]


FILE = "megatron/core/datasets/indexed_dataset.py"
BUG = probe.Signature("TypeError", "can't multiply sequence by non-int", FILE)
Documents = list[tuple[list[int], list[int] | None]]  # of each its items' lengths, and their modes or none


class Folder:
    """Data sets below one folder, each under a name of its own."""

    def __init__(self, p: probe.Probe, folder: str) -> None:
        self.module, self.folder, self.names = (
            p.upstream("megatron.core.datasets.indexed_dataset"),
            folder,
            itertools.count(),
        )

    def builder(self, multimodal: bool = True, dtype: Any = np.int32) -> tuple[Any, str]:
        prefix = str(Path(self.folder) / f"data{next(self.names)}")
        return self.module.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal), prefix

    def read(self, builder: Any, prefix: str, mmap: bool = True) -> tuple[list[list[int]], list[int], list[int]]:
        """Items, modes and the documents' bounds of what a builder has made."""
        builder.finalize(f"{prefix}.idx")
        data = self.module.IndexedDataset(prefix, multimodal=builder.multimodal, mmap=mmap)
        rows = [data[at] for at in range(len(data))]
        if not builder.multimodal:
            return [row.tolist() for row in rows], [], data.document_indices.tolist()
        return [row.tolist() for row, _ in rows], [int(mode) for _, mode in rows], data.document_indices.tolist()


def numbers(lengths: list[int], start: int) -> torch.Tensor:
    return torch.arange(start, start + sum(lengths))


def expected(documents: Documents) -> tuple[list[list[int]], list[int], list[int]]:
    items, modes, bounds, at = list[list[int]](), list[int](), [0], 0
    for lengths, given in documents:
        for length in lengths:
            items.append(list(range(at, at + length)))
            at += length
        modes += [0] * len(lengths) if given is None else given
        bounds.append(len(items))
    return items, modes, bounds


def built(folder: Folder, documents: Documents, mmap: bool = True) -> int:
    """0 where the documents are read as they were written, else 1."""
    builder, prefix = folder.builder()
    at = 0
    for lengths, modes in documents:
        row = numbers(lengths, at)
        builder.add_document(row, lengths) if modes is None else builder.add_document(row, lengths, modes)
        at += len(row)
    return int(folder.read(builder, prefix, mmap) != expected(documents))


def check_default(p: probe.Probe, folder: Folder) -> None:
    """Documents without modes, in each form of lengths that a list or its like has."""
    for name, lengths in {
        "two items": [2, 4],
        "one item": [3],
        "many items": [1, 2, 3, 4, 5, 6, 7],
        "equal items": [2, 2, 2],
        "no items": [],
        "an empty item": [0, 3],
        "a tuple": (2, 4),
    }.items():

        def whole(lengths: Any = lengths, **more: Any) -> int:
            builder, prefix = folder.builder()
            given = type(lengths)(lengths)
            said = builder.add_document(numbers(list(lengths), 0), given, **more)
            ours = type(builder.sequence_modes) is not list or builder.sequence_modes != [0] * len(lengths)
            kept = given != lengths or said is not None
            if not len(lengths):
                return int(ours or kept)  # an index without items cannot be read
            return int(ours or kept or folder.read(builder, prefix) != expected([(list(lengths), None)]))

        for form, more in (("", {}), (", modes=None", {"modes": None})):
            wrong = p.attempt(f"{name}{form}", partial(whole, **more), BUG)
            if wrong is not None:
                p.guard(f"{name}{form}: what is read", wrong, 0, reference="its items, each of mode 0")


def check_mixed(p: probe.Probe, folder: Folder) -> None:
    """Documents with and without modes, and items, in one data set; and one that is added to another."""

    def whole(mmap: bool) -> int:
        documents: Documents = [([2, 4], None), ([3], [5]), ([1, 1, 2], [1, 0, 2]), ([2, 2], None), ([4], None)]
        return built(folder, documents, mmap)

    for mmap in (True, False):
        wrong = p.attempt(f"mixed documents, {'mapped' if mmap else 'read'}", partial(whole, mmap), BUG)
        if wrong is not None:
            p.guard(f"mixed documents, {'mapped' if mmap else 'read'}: values", wrong, 0, reference="as written")

    def joined() -> int:
        first, one = folder.builder()
        first.add_item(torch.arange(3), mode=2)
        first.add_item(torch.arange(3, 5))
        first.end_document()
        first.finalize(f"{one}.idx")
        second, two = folder.builder()
        second.add_index(one)
        second.add_document(torch.arange(5, 9), [1, 3])
        want = [[0, 1, 2], [3, 4], [5], [6, 7, 8]], [2, 0, 0, 0], [0, 2, 4]
        return int(folder.read(second, two) != want)

    wrong = p.attempt("documents, items and another data set", joined, BUG)
    if wrong is not None:
        p.guard("documents, items and another data set: values", wrong, 0, reference="as written")


def check_drawn(p: probe.Probe, folder: Folder) -> None:
    """Documents that nobody foresees; each has modes, or a length for each item is missing one."""
    lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)

    def wrong(documents: list[list[int]], modes: list[bool]) -> int:
        told = itertools.cycle(modes)
        plan: Documents = [(one, [at % 3 for at in range(len(one))] if next(told) else None) for one in documents]
        try:
            return built(folder, plan)
        except TypeError:
            return 1

    space = {"documents": st.lists(lengths, min_size=1, max_size=4), "modes": st.lists(st.booleans(), min_size=1)}
    p.drawn("drawn documents", wrong, 0, space=space, count=20, reference="as written", bug_above=1)


def check_neighbours(p: probe.Probe, folder: Folder) -> None:
    """Modes that are given, in each form; lengths of numpy, with which it works; data sets without modes."""
    wrong = 0
    for modes in ([1, 0], (1, 0), np.array([1, 0]), np.array([1, 0], np.int8)):
        builder, prefix = folder.builder()
        given = modes.copy() if isinstance(modes, np.ndarray) else modes
        builder.add_document(torch.arange(6), [2, 4], given)
        wrong += list(given) != [1, 0] or builder.sequence_modes is given
        builder.add_document(torch.arange(6, 7), [1], modes=[3])
        wrong += folder.read(builder, prefix) != ([[0, 1], [2, 3, 4, 5], [6]], [1, 0, 3], [0, 2, 3])
    p.guard("given modes that are not kept", wrong, 0, reference="1, 0, 3")
    wrong = 0
    for kind in (np.int32, np.int64):
        builder, prefix = folder.builder()
        builder.add_document(torch.arange(6), np.array([2, 4], kind))
        wrong += folder.read(builder, prefix) != ([[0, 1], [2, 3, 4, 5]], [0, 0], [0, 2])
    p.guard("lengths of numpy: wrong data sets", wrong, 0, reference="modes of 0")
    wrong = 0
    for dtype in (np.int32, np.uint16, np.int64):
        builder, prefix = folder.builder(multimodal=False, dtype=dtype)
        builder.add_document(torch.arange(6), [2, 4])
        builder.add_document(torch.arange(6, 9), [3], [7])  # modes that nobody asked for
        wrong += builder.sequence_modes is not None
        wrong += folder.read(builder, prefix) != ([[0, 1], [2, 3, 4, 5], [6, 7, 8]], [], [0, 2, 3])
    p.guard("without modes: wrong data sets", wrong, 0, reference="as written")


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    with tempfile.TemporaryDirectory() as name:
        folder = Folder(p, name)
        check_neighbours(p, folder)
        check_default(p, folder)
        check_mixed(p, folder)
        check_drawn(p, folder)


if __name__ == "__main__":
    probe.main(reproduce, pack=66, package="megatron", minimal=minimal)
