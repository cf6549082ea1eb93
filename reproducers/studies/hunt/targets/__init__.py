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
    "mamba-ssm": Upstream(f"{__name__}.mamba", "state-spaces/mamba", "mamba_ssm"),
    "megatron-core": Upstream(f"{__name__}.megatron", "NVIDIA/Megatron-LM", "megatron"),
    "transformer-engine": Upstream(
        f"{__name__}.transformer_engine", "NVIDIA/TransformerEngine", "transformer_engine", ("pydantic-2.14.3",)
    ),
}
