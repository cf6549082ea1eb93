"""The indexed dataset: our files in Megatron's reader, Megatron's in ours, and every kind of damage refused."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from model.data.errors import DataError
from model.data.stored.indexed import HEADER, IndexedDataset, IndexedWriter, token_dtype
from patchlane.base.errors import CannotTestHere
from reproducers.record.schema import ROOT, load_packs, select
from reproducers.upstream import pins
from reproducers.upstream.store import Store

DOCUMENTS = [[1, 2, 3], [], [65535], list(range(1000))]
MEGATRON = """
import json, sys
from reproducers.probe.lanes import megatron as lane_megatron
lane_megatron.megatron_lane("cpu")
import numpy, torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
found = []
for dtype in ("uint16", "int32"):
    builder = IndexedDatasetBuilder(f"theirs-{dtype}.bin", dtype=getattr(numpy, dtype))
    for document in json.loads(sys.argv[1]):  # two sequences a document: bounds are not sequence ends
        half = len(document) // 2
        for part in (document[:half], document[half:]):
            builder.add_item(torch.tensor(part, dtype=torch.int64))
        builder.end_document()
    builder.finalize(f"theirs-{dtype}.idx")
    read = IndexedDataset(f"ours-{dtype}")
    documents = [read[i].tolist() for i in range(len(read))]
    found.append([documents, read.document_indices.tolist(), read.index.dtype.__name__])
print(json.dumps(found))
"""


def write(prefix, documents=DOCUMENTS, dtype="uint16"):
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for document in documents:
            writer.append(np.array(document, dtype=np.int64))
    return prefix


def contents(prefix):
    read = IndexedDataset(prefix)
    return [read[d].tolist() for d in range(len(read))]


@pytest.fixture(scope="module")
def megatron():
    """megatron-core's tree, as pack 01 pins it."""
    pack = select(["pack01"], load_packs())[0]
    try:
        return pins.pin_tree(Store(), pack, pack.pins["live"]).path
    except CannotTestHere as error:
        pytest.skip(f"megatron-core 0.19.0: {error.what}")


@pytest.mark.upstream
def test_megatron_reads_ours_and_we_read_megatrons(tmp_path, megatron):
    dtypes = ("uint16", "int32")
    for dtype in dtypes:
        write(tmp_path / f"ours-{dtype}", dtype=dtype)
    done = subprocess.run(
        [sys.executable, "-c", MEGATRON, json.dumps(DOCUMENTS)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{megatron}:{ROOT}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[DOCUMENTS, [0, 1, 2, 3, 4], dtype] for dtype in dtypes]
    for dtype in dtypes:
        assert contents(tmp_path / f"theirs-{dtype}") == DOCUMENTS
        assert IndexedDataset(tmp_path / f"theirs-{dtype}").dtype == dtype


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_round_trip(tmp_path, dtype):
    documents = [[d % 256 for d in document] for document in DOCUMENTS]
    read = IndexedDataset(write(tmp_path / "set", documents, dtype))
    assert [read[d].tolist() for d in range(len(read))] == documents
    assert read.dtype == dtype and read.bounds.tolist() == [0, 3, 3, 4, 1004]
    with pytest.raises(IndexError):
        read[4]


def test_empty_dataset(tmp_path):
    assert contents(write(tmp_path / "set", [])) == []


def test_dtype_follows_the_vocabulary():
    assert [token_dtype(n).name for n in (257, 65536, 65537)] == ["uint16", "uint16", "int32"]


@pytest.mark.parametrize("value", [65536, -1])
def test_an_id_that_does_not_fit_is_refused_and_nothing_is_left(tmp_path, value):
    with pytest.raises(DataError, match=rf"set\.bin: id {value} .*uint16"):
        write(tmp_path / "set", [[1], [value]])
    assert list(tmp_path.iterdir()) == []


def test_an_old_dataset_survives_a_failed_write(tmp_path):
    prefix = write(tmp_path / "set")
    with pytest.raises(DataError):
        write(prefix, [[70000]])
    assert contents(prefix) == DOCUMENTS


def patch(path, offset, data):
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


POINTERS = HEADER.size + 4 * len(DOCUMENTS)
INDICES = HEADER.size + 12 * len(DOCUMENTS)
DAMAGE = {
    "no idx": (lambda p: p.with_suffix(".idx").unlink(), r"set\.idx: "),
    "no bin": (lambda p: p.with_suffix(".bin").unlink(), r"set\.bin: "),
    "short header": (lambda p: cut(p.with_suffix(".idx"), 20), r"set\.idx: 20 bytes"),
    "short idx": (lambda p: cut(p.with_suffix(".idx"), 60), r"set\.idx: 60 bytes.* 122\b"),
    "short bin": (lambda p: cut(p.with_suffix(".bin"), 2006), r"set\.bin: 2006 bytes.* 2008\b"),
    "long bin": (lambda p: p.with_suffix(".bin").open("ab").write(b"xx"), r"set\.bin: 2010 bytes"),
    "magic": (lambda p: patch(p.with_suffix(".idx"), 0, b"X"), r"set\.idx: .*MMIDIDX"),
    "version": (lambda p: patch(p.with_suffix(".idx"), 9, b"\2"), r"version 2\b"),
    "dtype": (lambda p: patch(p.with_suffix(".idx"), 17, b"\x63"), r"dtype code 99"),
    "count": (
        lambda p: patch(p.with_suffix(".idx"), 18, struct.pack("<Q", 2**60)),
        rf"set\.idx: .* {HEADER.size + 12 * 2**60 + 8 * (len(DOCUMENTS) + 1)}\b",
    ),
    "length": (lambda p: patch(p.with_suffix(".idx"), HEADER.size, struct.pack("<i", -3)), r"sequence 0\b"),
    "pointer": (lambda p: patch(p.with_suffix(".idx"), POINTERS + 8, b"\7"), r"pointer of sequence 1"),
    "documents": (lambda p: patch(p.with_suffix(".idx"), INDICES + 8, b"\x09"), r"document indices"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_by_file_and_fault(tmp_path, name):
    damage, message = DAMAGE[name]
    prefix = write(tmp_path / "set")
    damage(prefix)
    with pytest.raises(DataError, match=message) as caught:
        IndexedDataset(prefix)
    assert "model.data build" in caught.value.remedy
