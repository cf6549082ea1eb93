"""Losses and gradients are of the tokens that count, however rows are spread over micro-batches and ranks."""

import pytest
import torch
from data_kit import BYTES

from model.data.build import build
from model.data.rows.loader import Loader
from model.data.source.readers import TextFiles
from model.data.stored.dataset import Dataset

pytestmark = pytest.mark.upstream
ROUNDING = 2e-6  # sums of fp32 in another order


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A dataset half of whose rows are documents of two bytes, in which a third of the tokens do not count."""
    folder = tmp_path_factory.mktemp("uneven")
    for number in range(380):
        (folder / f"short_{number:03d}.py").write_text(f"{number % 10}+")
    for number in range(3):
        (folder / f"very_long_{number}.py").write_text("".join(f"x{n} = {n * number}\n" for n in range(40)))
    found = build(TextFiles([folder]), BYTES, folder.parent / "uneven-set").folder
    rows = Loader(Dataset(found), "train", 64, 1)
    assert [int(next(rows).loss_mask.sum()) for _ in range(4)] == [43, 64, 52, 43]
    return found


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """A dataset whose rows of 64 tokens are four documents of sixteen each."""
    folder = tmp_path_factory.mktemp("even")
    for number in range(80):
        (folder / f"{number:02d}.py").write_text(f"x{number:02d} = {number * 7919 % 100:02d} + {number % 7:03d}\n")
    found = build(TextFiles([folder]), BYTES, folder.parent / "even-set").folder
    rows = Loader(Dataset(found), "train", 64, 1)
    assert all(next(rows).cu_seqlens.tolist() == [0, 16, 32, 48, 64] for _ in range(4))
    return found


@pytest.fixture(scope="module")
def first_step(stack, uneven, tmp_path_factory):
    """(micro-batch, micro-batches, ranks) -> what ``trained.gradients`` gives on rank 0, and the gradients of one."""

    def measure(rows, accumulate, world=1, data=uneven, routers=0.0):
        file = tmp_path_factory.mktemp("gradients") / "named.pt" if world == 1 else ""
        given = (str(data), rows, accumulate, str(file), routers)
        ended = [c.wait() for c in stack.ranks(world, "trained:gradients", *given)]
        assert [one.code for one in ended] == [0] * world, "\n".join(one.said for one in ended)
        return ended[0].value, torch.load(file) if file else None

    return measure


@pytest.fixture(scope="module")
def whole(first_step):
    """Four rows as one micro-batch."""
    return first_step(4, 1)


def alike(first, second):
    (want, one), (got, four) = first, second
    assert got == pytest.approx(want, rel=ROUNDING, abs=1e-8)
    errors = {name: float((four[name] - one[name]).norm() / (one[name].norm() + 1e-12)) for name in one}
    assert max(errors.values()) < 2e-5, max(errors.items(), key=lambda item: item[1])


def test_four_micro_batches_of_a_row_are_one_of_four(first_step, whole):
    alike(whole, first_step(1, 4))


def test_the_routers_loss_is_of_documents_in_any_micro_batch(first_step, even):
    """Rows have as many documents each; of the micro-batch as a whole the loss would be another."""
    alike(first_step(4, 1, data=even, routers=1.0), first_step(1, 4, data=even, routers=1.0))


@pytest.mark.parametrize(("rows", "accumulate"), [(2, 1), (1, 2)])
def test_two_ranks_are_one(first_step, whole, rows, accumulate):
    got, _ = first_step(rows, accumulate, 2)
    assert got == pytest.approx(whole[0], rel=ROUNDING, abs=1e-8)
