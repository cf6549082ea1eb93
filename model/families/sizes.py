"""The sizes of every family, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from model.families import deepseek_v4, nam56r
from model.families.family import Family
from patchlane.base.errors import PatchlaneError

SIZES: dict[str, Family] = {**nam56r.SIZES, **deepseek_v4.SIZES}
READ = tuple(name for name, size in SIZES.items() if not size.unread)


def named(name: str, offered: Iterable[str] = SIZES) -> Family:
    """The size called ``name``. Raises PatchlaneError if there is none, with those that are ``offered`` instead."""
    if name not in SIZES:
        raise PatchlaneError(f"no size is named {name!r}", f"choose one of: {', '.join(offered)}")
    return SIZES[name]


def readable(name: str) -> nam56r.Size:
    """The size called ``name``, of the architecture whose checkpoints and kernels all commands read. Raises
    PatchlaneError for one of another, and if there is none."""
    return computed(named(name, READ))


def recorded(said: Any) -> nam56r.Size:
    """``of_record`` of the architecture that all commands read. Raises PatchlaneError as ``readable``."""
    return computed(of_record(said))


def of_record(said: Any) -> Family:
    """The size that a record says, a ``model_dump``. Raises ValidationError for another version's."""
    if isinstance(said, dict) and said.get("model_type") == deepseek_v4.MODEL_TYPE:
        return deepseek_v4.Size.model_validate(said)
    return nam56r.Size.model_validate(said)


def computed(size: Family) -> nam56r.Size:
    """The size, where it is of the architecture that all commands read. Raises PatchlaneError as ``readable``."""
    return size if isinstance(size, nam56r.Size) else _unread(size)


def _unread(size: Family) -> NoReturn:
    raise PatchlaneError(
        f"{size.name} can be trained, exported and imported, and not more here yet: {size.unread}",
        f"python -m model.train {size.name}, python -m model.weights, or one of: {', '.join(READ)}",
    )


def expert_parallel(size: Family, parallel: int) -> None:
    """Raise PatchlaneError if the expert-parallel ranks cannot hold the same number of experts each."""
    count = size.experts_of_layer
    if count % parallel:
        divisors = ", ".join(str(number) for number in range(1, count + 1) if count % number == 0)
        raise PatchlaneError(
            f"{count} experts cannot be shared by {parallel} expert-parallel ranks",
            f"--ep, of model.train --set expert_parallel=, one of {divisors}",
        )
