"""One name for each attempt, by a store that keeps what earlier attempts wrote; threads stand for ranks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from model.loop.ranks import meeting
from patchlane.base.errors import PatchlaneError


def names(store, size):
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: meeting.attempt(store, rank, size, 20), range(size)))


def test_ranks_agree_on_a_name_that_no_other_attempt_has():
    store, seen = dist.HashStore(), set()
    for _ in range(4):
        found = set(names(store, 3))
        assert len(found) == 1
        assert not found & seen
        seen |= found


@pytest.mark.parametrize(("rank", "missing"), [(0, "rank 1, 2"), (1, "rank 0")])
def test_ranks_that_do_not_come_are_named(rank, missing):
    with pytest.raises(PatchlaneError) as refused:
        meeting.attempt(dist.HashStore(), rank, 3, 0.2)
    assert missing in refused.value.what


def test_what_nccl_meets_is_told_in_its_words():
    said = "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'\n"
    with pytest.raises(PatchlaneError) as refused, meeting.kept(0.1, lambda: 3):
        raise dist.DistBackendError(said)
    assert refused.value.what == "step 3: NCCL: Cuda failure 2 'out of memory'"


def test_a_connection_that_another_rank_closed_is_its_end():
    with pytest.raises(PatchlaneError) as refused, meeting.kept(0.1, lambda: 3):
        raise dist.DistNetworkError("Connection reset by peer")
    assert refused.value.what == "step 3: another rank ended"
