"""Ceilings by a planted timer, on a CPU."""

import pytest
import torch

from model.profile import ceilings
from model.profile.ceilings import NO_ROOM, Ceilings, Copy, Product, measure

SIZES = ((4, 8, 16), (8, 8, 4))


def test_products_and_copy_are_really_done():
    ran = []

    def timed(run):
        ran.append(run())
        return 1e-6

    state = torch.random.get_rng_state()
    found = measure("cpu", timed, SIZES, (64,))
    assert torch.equal(torch.random.get_rng_state(), state)  # a run draws what it draws without a profile
    assert [(tuple(out.shape), out.dtype) for out in ran] == [
        ((4, 16), torch.bfloat16),
        ((8, 4), torch.bfloat16),
        ((64,), torch.uint8),
    ]
    assert ran[0].float().std() > 1 and ran[2].sum() == 64
    assert [(p.rows, p.inner, p.columns) for p in found.products] == [*SIZES] and found.skipped is None
    assert found.flops_per_second == pytest.approx(2 * 4 * 8 * 16 / 1e-6)  # 1,024 FLOPs, and 512 in the same time
    assert found.bytes_per_second == pytest.approx(2 * 64 / 1e-6)


def test_the_fastest_product_counts():
    slow, fast = (Product(rows=1, inner=1, columns=1, seconds=seconds) for seconds in (2.0, 0.5))
    assert Ceilings(products=[slow, fast], copied=Copy(size=6, seconds=3.0)).flops_per_second == 4.0
    assert (Ceilings().flops_per_second, Ceilings().bytes_per_second) == (None, None)


def test_sizes_without_room_are_left_out():
    asked = []

    def timed(run):
        asked.append(run().numel())
        if asked[-1] in (64, 512):
            raise torch.OutOfMemoryError("no room")
        return 1.0

    found = measure("cpu", timed, SIZES, (512, 256, 128))
    assert asked == [64, 32, 512, 256]
    assert found == Ceilings(
        products=[Product(rows=8, inner=8, columns=4, seconds=1.0)], copied=Copy(size=256, seconds=1.0)
    )


def test_no_room_at_all_is_said(monkeypatch):
    def none(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(ceilings, "_product", none)
    monkeypatch.setattr(ceilings, "_copy", none)
    assert measure("cpu", lambda run: 1.0, SIZES, (64,)) == Ceilings(skipped=NO_ROOM)


def test_a_median_by_the_gpus_clock(monkeypatch):
    """Events that read a planted clock, in ms; each run takes one more than the one before."""
    clock, ran = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, other):
            return other.at - self.at

    def run():
        ran.append(len(ran))
        clock[0] += ran[-1]

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ran.append("synchronized"))
    monkeypatch.setattr(ceilings, "WARM", 2)
    monkeypatch.setattr(ceilings, "REPEATS", 3)
    assert ceilings.seconds(run) == 0.003  # of 2, 3 and 4 ms: those before are warm-up
    assert ran == [0, 1, 2, 3, 4, "synchronized"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    measure(sizes=ceilings.SIZES[:1])  # cuBLAS keeps a workspace
    state, held = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    found = measure()
    assert found.skipped is None and len(found.products) == len(ceilings.SIZES)
    assert found.copied.size == ceilings.COPIED[0] and min(found.flops_per_second, found.bytes_per_second) > 0
    assert torch.equal(torch.cuda.get_rng_state(), state) and torch.cuda.memory_allocated() == held
