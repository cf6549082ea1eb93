"""What each rank's GPU had allocated at most."""

from __future__ import annotations

import torch
import torch.distributed as dist

GIB = 2**30


def gathered() -> torch.Tensor:
    """[ranks] GiB, in their order, since the call before, on the device; every rank calls it. Empty without a GPU."""
    if not torch.cuda.is_available():
        return torch.empty(0)
    mine = torch.full((1,), torch.cuda.max_memory_allocated() / GIB, device="cuda")  # filled there: nothing is copied
    torch.cuda.reset_peak_memory_stats()
    every = mine.new_empty(dist.get_world_size())
    dist.all_gather_into_tensor(every, mine)
    return every
