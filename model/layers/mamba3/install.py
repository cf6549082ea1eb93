"""Mamba-3 as a layer of Megatron's hybrid stack, and its projections' paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core.transformer.spec_utils import ModuleSpec
from torch import nn

from model.kinds.path import Choice
from model.kinds.recurrent import mamba3 as kind
from model.layers.captured.graphed import Graphed
from model.layers.common import mixer
from model.layers.linear import fp8, parts
from model.layers.mamba3.mixer import Mamba3Mixer, build_mamba3
from model.patched import seams


class Mamba3Layer(Graphed, mixer.MixerLayer):
    """Mamba-3 MIMO: mamba-ssm's module (``model.layers.mamba3.mixer``)."""

    def _mixer(self, config: Any) -> nn.Module:
        m = config.model_size.mamba
        return build_mamba3(
            config.hidden_size,
            d_state=m.state,
            expand=m.expand,
            headdim=m.head_dim,
            ngroups=m.groups,
            rank=m.rank,
            chunk=m.chunk,
            rope_fraction=m.rope_fraction,
            dt_min=m.dt_min,
            dt_max=m.dt_max,
            A_floor=m.A_floor,
            dtype=config.params_dtype,
            device=mixer.device(config),
            path=config.model_paths["mamba3"].name,
            row=config.model_row,
            norm=config.model_paths["bc_norm"].name,
        )


def layer(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """The layer's spec; arguments as every kind's."""
    return ModuleSpec(module=Mamba3Layer)


def in_parts(model: nn.Module) -> None:
    """Every Mamba-3 of ``model`` has its in-projection's output in parts."""
    for each in _mixers(model):
        parted(each.mamba)


def in_fp8_parts(model: nn.Module) -> None:
    """And both projections multiply in FP8, all but the in-projection's small outputs."""
    for each in _mixers(model):
        parted(each.mamba, eight=True)


def parted(mamba: Any, eight: bool = False) -> None:
    """Have Mamba3's in-projection give its output in parts: z, x, B, C, and all else together; in FP8 if ``eight``, as
    is then the out-projection."""
    seams.verify(kind.WGRAD)
    into, wide, heads = mamba.in_proj, mamba.d_state * mamba.num_bc_heads * mamba.mimo_rank, mamba.nheads
    into.__class__ = parts.Linear
    into.wide, into.rest = (mamba.d_inner,) * 2 + (wide,) * 2, (heads,) * 3 + (mamba.num_rope_angles,)
    into.eight = eight
    if eight:
        mamba.out_proj.__class__ = fp8.Linear


def _mixers(model: nn.Module) -> list[Mamba3Mixer]:
    return [module for module in model.modules() if isinstance(module, Mamba3Mixer)]
