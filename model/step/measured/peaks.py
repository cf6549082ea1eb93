"""The peak of allocated memory on each rank's GPU."""

from __future__ import annotations

import torch
import torch.distributed as dist

from model.definition.memory import GIB


def gathered() -> torch.Tensor:
    """Peaks since the last call, [ranks] GiB in rank order, on the device; every rank calls it. Empty without a GPU."""
    if not torch.cuda.is_available():
        return torch.empty(0)
    peak = torch.cuda.max_memory_allocated() / GIB
    own = torch.full((1,), peak, device="cuda")  # filled on the device: nothing is copied
    torch.cuda.reset_peak_memory_stats()
    every = own.new_empty(dist.get_world_size())
    dist.all_gather_into_tensor(every, own)
    return every
