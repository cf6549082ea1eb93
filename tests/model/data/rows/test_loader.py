"""Packed batches: next-token labels, masks, positions, bounds; resuming; ranks."""

import hashlib
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from data_kit import PLAIN, documents, make_dataset, write_corpus

from model.data.build import build
from model.data.columns.structure import FIELDS
from model.data.errors import DataError
from model.data.rows.loader import Loader
from model.data.rows.packing import Packing
from model.data.source.readers import TextFiles
from model.data.stored.dataset import Dataset

EOD, S = 256, 64


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("loader"), documents=300, longest=90)


def take(loader, count):
    return [next(loader) for _ in range(count)]


def rows(batches):
    return torch.cat([batch.tokens.view(-1, S) for batch in batches])


def same(one, two):
    assert one.max_seqlen == two.max_seqlen
    for name in ("tokens", "labels", "loss_mask", "positions", "cu_seqlens", "structure"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


def test_an_epoch_holds_every_document_once_in_a_shuffled_order_of_rows(dataset):
    loader = Loader(dataset, "train", S, 1)
    order = loader._sources[0]._packing.order(0).tolist()
    assert sorted(order) == list(range(loader.rows)) != order
    batches = [batch for _, batch in sorted(zip(order, take(loader, loader.rows), strict=True), key=lambda b: b[0])]
    stream = [*rows(batches).flatten().tolist(), int(batches[-1].labels[-1])]
    flat = [token for document in documents(dataset, "train") for token in document]
    assert len(stream) == loader.rows * S + 1 and len(flat) - len(stream) < S
    cuts = [i + 1 for i, token in enumerate(stream) if token == EOD]
    whole = [tuple(stream[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    originals = [tuple(document) for document in documents(dataset, "train")]
    assert Counter(whole) <= Counter(originals) and len(whole) >= len(originals) - S
    assert whole != originals[: len(whole)]


def test_the_rows_of_one_dataset_are_those_of_before_there_were_blends(dataset):
    """Digest and state as commit b4a37e2 gave them: a run of then goes on."""
    loader, digest = Loader(dataset, "train", S, 3, rank=1, world=2, seed=5), hashlib.sha256()
    for batch in take(loader, 200):
        for name in ("tokens", "labels", "loss_mask", "positions", "cu_seqlens", "structure"):
            digest.update(getattr(batch, name).numpy().tobytes())
    assert digest.hexdigest() == "601d85c641662e6665e1950890ca5d4b6cbca7a7ef11fdbc9f1c4075e484fde5"
    digest = "cd3eb762e0962e4f491fd869273b023583dd0f7c654816293883e73f455fd923"
    state = {"version": 2, "consumed": 1200, "dataset": digest, "split": "train", "sequence_length": S, "seed": 5}
    assert loader.state_dict() == state


def test_labels_are_the_next_tokens_and_masked_only_after_eod(dataset):
    for batch in take(Loader(dataset, "train", S, 3), 10):
        tokens, labels, mask = (t.view(3, S) for t in (batch.tokens, batch.labels, batch.loss_mask))
        assert torch.equal(labels[:, :-1], tokens[:, 1:])
        assert torch.equal(mask == 0, tokens == EOD)
        assert batch.loss_mask.dtype == torch.float32 and 0 < mask.mean() < 1


def test_bounds_and_positions(dataset):
    for batch in take(Loader(dataset, "train", S, 3), 10):
        cu = batch.cu_seqlens
        assert cu.dtype == torch.int32 and cu[0] == 0 and cu[-1] == 3 * S and (cu.diff() > 0).all()
        assert {0, S, 2 * S} <= set(cu.tolist())
        starts = {0, S, 2 * S} | {int(i) + 1 for i in torch.where(batch.tokens == EOD)[0] if i + 1 < 3 * S}
        assert set(cu[:-1].tolist()) == starts
        assert batch.max_seqlen == int(cu.diff().max()) <= S
        expected = torch.cat([torch.arange(int(n)) for n in cu.diff()])
        assert torch.equal(batch.positions, expected) and batch.positions.dtype == torch.int64


def test_a_document_that_ends_with_its_row_masks_the_label_only(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(name * 7)  # 8 tokens with EOD
    batch = next(Loader(Dataset(build(TextFiles([folder]), PLAIN, tmp_path / "o").folder), "train", 8, 2))
    assert batch.cu_seqlens.tolist() == [0, 8, 16] and batch.structure is None
    assert batch.loss_mask.tolist() == [1.0] * 7 + [0.0] + [1.0] * 7 + [0.0]


def test_structure_travels_with_its_tokens(dataset):
    loader = Loader(dataset, "train", S, 2, structure=tuple(FIELDS))
    assert next(Loader(dataset, "train", S, 2)).structure.shape == (2 * S, 2)
    columns = [dataset.column("train", name) for name in FIELDS]
    known = {
        tuple(document): np.stack([column[d] for column in columns], axis=1)
        for d, document in enumerate(documents(dataset, "train"))
    }
    checked = 0
    for batch in take(loader, 8):
        cu = batch.cu_seqlens.tolist()
        for a, b in pairwise(cu):
            piece = tuple(batch.tokens[a:b].tolist())
            if piece in known:
                assert np.array_equal(batch.structure[a:b].numpy(), known[piece])
                checked += 1
    assert checked > 3 and batch.structure.dtype == torch.int64


def test_resume_goes_on_as_if_never_interrupted(dataset):
    whole = take(Loader(dataset, "train", S, 2, seed=3), 400)
    assert Loader(dataset, "train", S, 2).rows < 700  # the run crosses an epoch
    first = Loader(dataset, "train", S, 2, seed=3)
    take(first, 150)
    second = Loader(dataset, "train", S, 2, seed=3)
    second.load_state_dict(first.state_dict())
    for one, two in zip(whole[150:], take(second, 250), strict=True):
        same(one, two)


def test_ranks_together_see_what_one_sees_and_the_world_may_change(dataset):
    alone = rows(take(Loader(dataset, "train", S, 4, seed=1), 30))
    ranks = [Loader(dataset, "train", S, 2, rank, 2, seed=1) for rank in range(2)]
    for step in range(15):
        parts = [next(loader).tokens.view(2, S) for loader in ranks]
        assert torch.equal(torch.stack(parts, dim=1).reshape(4, S), alone[4 * step : 4 * step + 4])
    assert ranks[0].state_dict() == ranks[1].state_dict()
    four = [Loader(dataset, "train", S, 1, rank, 4, seed=1) for rank in range(4)]
    for loader in four:
        loader.load_state_dict(ranks[0].state_dict())
    parts = [next(loader).tokens for loader in four]
    assert torch.equal(torch.stack(parts), alone[60:64])


def test_epochs_and_seeds_differ_and_repeat(dataset):
    count = Loader(dataset, "train", S, 1).rows
    one, two = (rows(take(Loader(dataset, "train", S, 1, seed=s), 2 * count)) for s in (0, 1))
    assert not torch.equal(one[:count], one[count:]) and not torch.equal(one[:count], two[:count])
    assert torch.equal(one, rows(take(Loader(dataset, "train", S, 1, seed=0), 2 * count)))


def test_the_order_is_the_same_on_every_host_and_release():
    spans = Packing(np.arange(0, 101, 10), 100 - 1, seed=7).row(2, 0)
    assert spans.starts.tolist() == [60, 70, 80, 40, 0, 10, 50, 30, 90, 20]
    assert Packing(np.array([0, 33]), 4, seed=7).order(2).tolist() == [5, 6, 7, 3, 0, 4, 2, 1]


def test_the_last_token_needs_no_row_of_its_own():
    assert [Packing(np.array([0, n]), 64, seed=0).rows for n in (65, 128, 129)] == [1, 1, 2]


def test_padded_bounds(dataset):
    for batch in take(Loader(dataset, "train", S, 2, document_multiple=8), 5):
        cu = batch.cu_seqlens
        assert (len(cu) - 1) % 8 == 0 and (cu.diff() >= 0).all() and cu[-1] == 2 * S
        exact = cu.unique()
        assert torch.equal(batch.positions, torch.cat([torch.arange(int(n)) for n in exact.diff()]))


def test_another_runs_state_is_refused(dataset, tmp_path):
    state = Loader(dataset, "train", S, 2).state_dict()
    other = make_dataset(tmp_path, "other", seed=5)
    for loader, name in [
        (Loader(other, "train", S, 2), "dataset"),
        (Loader(dataset, "valid", S, 2), "split"),
        (Loader(dataset, "train", S // 2, 2), "sequence_length"),
        (Loader(dataset, "train", S, 2, seed=9), "seed"),
    ]:
        with pytest.raises(DataError, match=f" {name} is "):
            loader.load_state_dict(state)
        assert loader.consumed == 0
    for broken in ({}, state | {"version": 1}, state | {"consumed": -1}, state | {"consumed": "x"}):
        with pytest.raises(DataError, match="loader state"):
            Loader(dataset, "train", S, 2).load_state_dict(broken)


def test_senseless_loaders_are_refused(dataset, tmp_path):
    for options, message in [
        ({"rank": 2, "world": 2}, "rank 2"),
        ({"micro_batch": 0}, "micro-batch 0"),
        ({"seed": -1}, "seed -1"),
        ({"sequence_length": 0}, "sequence length 0"),
        ({"sequence_length": 10**9}, f"{10**9} "),
        ({"structure": ("colour",)}, "'colour'"),
    ]:
        with pytest.raises(DataError, match=message):
            Loader(dataset, "train", **{"sequence_length": S, "micro_batch": 1, **options})
    empty = Dataset(build(TextFiles([write_corpus(tmp_path / "c")]), PLAIN, tmp_path / "o").folder)
    with pytest.raises(DataError, match=r"\b0 tokens"):
        Loader(empty, "valid", S, 1)


def test_to_and_pin_keep_every_field(dataset):
    batch = next(Loader(dataset, "train", S, 1))
    same(batch, batch.to("cpu"))
    moved = batch.to("meta", non_blocking=True)
    assert moved.structure.is_meta and moved.cu_seqlens.is_meta and moved.max_seqlen == batch.max_seqlen


@pytest.mark.parametrize(("micro_batch", "world"), [(1, 1), (3, 1), (1, 2), (2, 3), (4, 4)])
@pytest.mark.parametrize("wanted", [1, 7, 10_000])
def test_the_first_rows_are_the_same_whatever_the_layout(dataset, wanted, micro_batch, world):
    """Rows of the last step that were not asked for are there, and nothing of them counts."""
    whole = Loader(dataset, "train", S, 1)
    wanted_rows = rows(take(whole, min(wanted, whole.rows)))
    ranks = [Loader(dataset, "train", S, micro_batch, rank, world) for rank in range(world)]
    for again in range(2):
        found = [rank.first(wanted) for rank in ranks]
        assert len({tuple(batch.tokens.shape for batch in batches) for batches in found}) == 1, again
        in_order = torch.stack([rows([batch]) for step in zip(*found, strict=True) for batch in step])
        masks = torch.stack([b.loss_mask.view(-1, S) for step in zip(*found, strict=True) for b in step])
        in_order, masks = (t.unflatten(0, (-1, world)).transpose(1, 2).flatten(0, 2) for t in (in_order, masks))
        assert torch.equal(in_order[: len(wanted_rows)], wanted_rows)
        assert bool(masks[: len(wanted_rows)].any(1).all()) and not masks[len(wanted_rows) :].any()
        assert len(in_order) - len(wanted_rows) < micro_batch * world


def test_rows_left_out_are_never_taken_on_any_number_of_ranks(dataset):
    """The rows of two batches are gone back over; what follows is what a loader without them gives, and resumes."""
    plain = [rows([batch]).tolist() for batch in take(Loader(dataset, "train", S, 2), 8)]
    loader = Loader(dataset, "train", S, 2)
    take(loader, 5)
    assert loader.leave_out(6) == (6, 10)
    assert [rows([batch]).tolist() for batch in take(loader, 2)] == plain[5:7]
    assert loader.leave_out(4) == (4, 14)
    assert rows([next(loader)]).tolist() == plain[7]
    ranks = [Loader(dataset, "train", S, 1, rank, 2) for rank in range(2)]
    for one in ranks:
        one.load_state_dict({**loader.state_dict(), "consumed": 4})
    assert torch.cat([rows([next(one)]) for one in ranks]).tolist() == plain[7]
    assert "left_out" not in Loader(dataset, "train", S, 2).state_dict()
