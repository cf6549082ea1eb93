"""Products of experts, one of which has no rows and anything for a product, added to sums that are there."""

import torch

from model.layers.experts.weight_sums import add_used

COUNTS = (0, 3, 0, 5, 1)


def right(dtype: torch.dtype, shape: tuple[int, int], apart: int, device: str) -> bool:
    """Whether sums that lie ``apart`` from each other are those of torch, and what lies between them is as it was."""
    draw = torch.Generator().manual_seed(0)
    product = torch.randn(len(COUNTS), *shape, generator=draw).to(device, dtype)
    memory = torch.randn(len(COUNTS) * apart, generator=draw).to(device)
    sums = memory.as_strided((len(COUNTS), *shape), (apart, shape[1], 1))
    used = torch.tensor(COUNTS, device=device) > 0
    want = memory.clone()
    want.as_strided(sums.shape, sums.stride())[used] += product[used].float()
    product[~used] = torch.nan
    add_used(product, torch.tensor(COUNTS, device=device).cumsum(0, dtype=torch.int32), sums)
    return torch.equal(memory, want)
