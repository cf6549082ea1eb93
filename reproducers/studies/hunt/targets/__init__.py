"""What is hunted, a module for each upstream: functions, the space of their inputs, fp64 references. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Upstream:
    """``targets``: the module with TARGETS and ``prepare(tree)``. ``needs``: sets of packs/needs.yaml."""

    targets: str
    repo: str
    package: str
    needs: tuple[str, ...] = ()


UPSTREAMS = {  # by distribution
    "liger-kernel": Upstream(f"{__name__}.liger", "linkedin/Liger-Kernel", "liger_kernel"),
}
