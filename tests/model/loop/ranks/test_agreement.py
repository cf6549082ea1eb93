"""What ranks agree on."""

import torch

from model.loop.ranks import agreement


def test_a_flag_of_any_rank_is_known_without_a_gpu(monkeypatch):
    """The other rank has raised the second one. A value that is read from a device makes the host wait for it."""
    asked = []

    def reduced(flags, op):
        asked.append((flags.device.type, op))
        flags.copy_(torch.maximum(flags, torch.tensor([0.0, 1.0, 0.0])))

    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("meta"))
    monkeypatch.setattr(agreement.dist, "all_reduce", reduced)
    assert agreement.anywhere(True, False, False) == [True, True, False]
    assert asked == [("cpu", torch.distributed.ReduceOp.MAX)]
