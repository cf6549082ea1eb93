"""What each rank's GPU had allocated at most."""

from __future__ import annotations

import torch
import torch.distributed as dist

GIB = 2**30


def gathered() -> list[float]:
    """GiB a rank, in their order, since the call before; every rank calls it. Empty without a GPU."""
    if not torch.cuda.is_available():
        return []
    mine = torch.tensor([torch.cuda.max_memory_allocated() / GIB], device="cuda")
    torch.cuda.reset_peak_memory_stats()
    every = mine.new_empty(dist.get_world_size())
    dist.all_gather_into_tensor(every, mine)
    found: list[float] = every.tolist()
    return found
