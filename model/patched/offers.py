"""Paths that only some stacks' code can run, each with the function of upstream, or of a pack, that it calls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from model.patched import seams

# {"kind=path": "module:qualified name"}
CALLS = {
    "loss=liger_unread": "liger_kernel.ops.fused_linear_cross_entropy:fused_linear_cross_entropy_per_token_backward",
}


def lacking(roots: Iterable[str | Path]) -> dict[str, str]:
    """{"kind=path": why it cannot run} for the code in ``roots``, which is not imported."""
    places = list(roots)
    return {
        path: f"upstream's code has no {name.partition(':')[2]}, with the patches that are in it"
        for path, name in CALLS.items()
        if seams.source(name, places) is None
    }
