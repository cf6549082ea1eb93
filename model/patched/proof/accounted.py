"""What runs show of the patches that they applied: the hunks that a run executed, and those that none did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reproducers.record.schema import Pack
from reproducers.training import reach, runs


class Account(NamedTuple):
    """Hunks that a run executed, hunks of which their pack says why none can, and a line for each other."""

    ran: int
    cannot: int
    rest: list[str]


def of(packs: Sequence[Pack], folder: Path) -> Account:
    """The account of the runs in ``folder``. Raises PatchlaneError with a run that cannot be read."""
    ran, cannot, rest = 0, 0, list[str]()
    for name, patches in reach.found(packs, runs.of(folder)).items():
        for patch, reaches in patches.items():
            ran += sum(len(each.hunks) for each in reaches if each.run)
            cannot += sum(len(each.hunks) for each in reaches if not each.run and each.why)
            silent = [hunk for each in reaches if not (each.run or each.why) for hunk in each.hunks]
            rest += [f"{name} {patch}: {hunk} ran nowhere" for hunk in silent]
    return Account(ran, cannot, rest)
