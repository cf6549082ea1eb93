"""The sizes of every family, by name."""

from __future__ import annotations

from model.families import nam56r
from model.families.family import Family
from model.families.nam56r import Size
from reproducers.base.errors import PatchlaneError

SIZES: dict[str, Size] = nam56r.SIZES


def named(name: str) -> Size:
    """The size called ``name``. Raises PatchlaneError if there is none."""
    if name not in SIZES:
        raise PatchlaneError(f"no size is named {name!r}", f"choose one of: {', '.join(SIZES)}")
    return SIZES[name]


def expert_parallel(size: Family, parallel: int) -> None:
    """Raise PatchlaneError if the expert-parallel ranks cannot hold the same number of experts each."""
    count = size.experts_of_layer
    if count % parallel:
        divisors = ", ".join(str(number) for number in range(1, count + 1) if count % number == 0)
        raise PatchlaneError(
            f"{count} experts cannot be shared by {parallel} expert-parallel ranks",
            f"--ep, of model.train --set expert_parallel=, one of {divisors}",
        )
