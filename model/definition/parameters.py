"""Each tensor's shape and the parameters by part, from a size alone; a test builds each size on the meta device and
compares."""

from __future__ import annotations

from model.families.family import Family
from model.kinds.kind import Shapes, under


def shapes(size: Family) -> Shapes:
    """{a checkpoint's key: shape} of all that a checkpoint keeps of the model, a layer's experts as one."""
    return {name: shape for prefix, kind in size.placed for name, shape in under(prefix, kind.shapes()).items()}


def by_part(size: Family) -> dict[str, int]:
    """Parameters of each part of the model; their sum is its total."""
    found = dict.fromkeys(size.parameter_rows, 0)
    for _, kind in size.placed:
        for part, count in kind.counts().items():
            found[part] = found.get(part, 0) + count
    return found


def total(size: Family, mtp: bool = True) -> int:
    """``mtp``: with the depths of MTP, which generation does without."""
    return sum(by_part(size).values()) - (0 if mtp else size.mtp_depths * size.mtp.number())


def active(size: Family, mtp: bool = True) -> int:
    """Parameters that one token meets: all but the experts that its router leaves out. ``mtp`` as ``total`` has it."""
    idle = sum(kind.idle() for _, kind in size.placed) - (0 if mtp else size.mtp_depths * size.mtp.idle())
    return total(size, mtp) - idle
