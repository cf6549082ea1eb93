"""Shards: bounded files that read as one, by the same rows; sets to evaluate on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from data_kit import BYTES, documents, write_corpus
from typer.testing import CliRunner

from model.data.__main__ import app
from model.data.build import build
from model.data.errors import DataError
from model.data.rows.loader import Loader
from model.data.source.readers import TextFiles
from model.data.stored.dataset import Dataset, damaged
from model.data.stored.indexed import IndexedDataset
from model.data.stored.shards import JoinedTokens

LIMIT = 2000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = write_corpus(tmp_path_factory.mktemp("shards") / "c", documents=50)
    (folder / "long.py").write_text("x = 1\n" * 500)
    return TextFiles([folder])


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    return Dataset(build(corpus, BYTES, tmp_path_factory.mktemp("whole") / "d").folder)


@pytest.fixture(scope="module")
def sharded(corpus, tmp_path_factory):
    return Dataset(build(corpus, BYTES, tmp_path_factory.mktemp("parts") / "d", shard_bytes=LIMIT).folder)


def test_no_shard_is_larger_but_one_of_a_single_document(sharded):
    shards = sorted(path for path in sharded.folder.glob("train-*.bin"))
    assert len(shards) > 5 and not (sharded.folder / "train.bin").exists()
    held = {path.stem: len(IndexedDataset(path.with_suffix(""))) for path in shards}
    over = [path.stem for path in shards if path.stat().st_size > LIMIT]
    assert len(over) == 1 and held[over[0]] == 1 and all(held.values())
    for path in shards:
        column = IndexedDataset(path.with_name(path.stem.replace("train-", "train.structure-")))
        assert np.array_equal(column.bounds, IndexedDataset(path.with_suffix("")).bounds)
    assert set(sharded.record.files) == {path.name for path in sharded.folder.iterdir()} - {"dataset.json"}
    assert damaged(sharded.folder, sharded.record) == []


def test_shards_read_as_the_one_file_and_give_the_same_rows(whole, sharded):
    for split in ("train", "valid"):
        assert documents(sharded, split) == documents(whole, split)
        for name in whole.record.fields:
            one, two = (dataset.column(split, name) for dataset in (whole, sharded))
            assert np.array_equal(one.tokens[:], two.tokens[0 : len(two.tokens)])
    assert sharded.record.splits == whole.record.splits
    loaders = [Loader(dataset, "train", 64, 3, seed=2) for dataset in (whole, sharded)]
    for _ in range(2 * loaders[0].rows // 3):
        one, two = map(next, loaders)
        for name in ("tokens", "labels", "positions", "cu_seqlens", "structure"):
            assert torch.equal(getattr(one, name), getattr(two, name))


def test_slices_of_joined_tokens():
    parts = [np.arange(0, 3), np.arange(3, 4), np.arange(4, 9)]
    joined = JoinedTokens(parts, np.array([0, 3, 4, 9]))
    for low in range(10):
        for high in range(low, 10):
            assert joined[low:high].tolist() == list(range(low, high)), (low, high)


def test_other_shards_are_another_dataset_and_the_same_are_reused(corpus, sharded, whole):
    assert sharded.record.build_sha256 != whole.record.build_sha256
    assert build(corpus, BYTES, sharded.folder, shard_bytes=LIMIT).reused
    with pytest.raises(DataError):
        build(corpus, BYTES, sharded.folder)


def test_shards_do_not_depend_on_the_number_of_processes(corpus, sharded, tmp_path):
    again = build(corpus, BYTES, tmp_path / "two", shard_bytes=LIMIT, workers=2)
    assert again.record == sharded.record


def test_a_missing_shard_is_refused(corpus, tmp_path):
    folder = build(corpus, BYTES, tmp_path / "d", shard_bytes=LIMIT).folder
    (folder / "train-00001.bin").unlink()
    with pytest.raises(DataError, match=r"train-00001\.bin"):
        Dataset(folder)


def test_all_of_a_set_may_be_held_out(corpus, tmp_path):
    held = Dataset(build(corpus, replace(BYTES, valid_percent=100), tmp_path / "d").folder)
    assert held.record.splits["train"].documents == 0 and held.record.splits["valid"].documents == 51
    assert next(Loader(held, "valid", 64, 1)).tokens.shape == (64,)
    with pytest.raises(DataError):
        Loader(held, "train", 64, 1)


def test_the_command_line_takes_gib(corpus, tmp_path):
    source = [str(corpus.files[0][1].parent)]
    given = ["build", "--source", "text", "--out", str(tmp_path / "d"), "--shard-gib", str(LIMIT / 2**30), *source]
    assert CliRunner().invoke(app, given).exit_code == 0
    assert len([*(tmp_path / "d").glob("train-*.bin")]) > 5
    for size in ("0", "-1", "nan", "inf"):
        refused = CliRunner().invoke(app, [*given, "--shard-gib", size])
        assert isinstance(refused.exception, DataError) and f"--shard-gib {size}" in refused.exception.what
