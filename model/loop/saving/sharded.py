"""What a checkpoint holds of an engine: for each rank the parts that it writes, and those that it reads.

Megatron shards the model. Of the optimizer each rank has, by the distributed optimizer, a stretch of some parameters:
fp32 weights and moments are kept under their parameter's key as one-dimensional tensors, so that a rank writes and
reads its own stretches, nothing is gathered, and any data, expert or pipeline layout loads them. That is the format
``stretches``. Megatron's own of this reach, ``fully_reshardable`` (distrib_optimizer.py @ core_v0.19.0), gathers a
data-parallel group's state in the memory of one rank, and Megatron-LM's scripts read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.transformer.module import MegatronModule
from torch.nn import Parameter

from model.kinds.run import OptimizerFormat
from model.step import muon
from model.step.engine import Engine
from patchlane.base.errors import PatchlaneError

CONTENT = {"optimizer": "stretches of flat parameters"}  # of AdamW; Megatron adds to what it is given
RESHARDABLE = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
STATES = ("param", "exp_avg", "exp_avg_sq")  # fp32 weights and AdamW's moments, as the distributed optimizer calls them
OF_MUON = ("param", muon.MOMENTUM)


def content(optimizer: str, form: OptimizerFormat) -> dict[str, Any]:
    """What a checkpoint tells of the state that it holds of the recipe's ``optimizer``, in which format."""
    if form == "fully_reshardable":
        return {**RESHARDABLE, "optimizer": optimizer}
    return CONTENT if optimizer == "adamw" else {"optimizer": f"{CONTENT['optimizer']}, of {optimizer} and AdamW"}


def _optimizers(engine: Engine) -> list[Any]:
    """The distributed optimizers: of dense parameters and, with expert parallelism, of experts."""
    optimizers: list[Any] = getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])
    return optimizers


def state(engine: Engine, form: OptimizerFormat) -> dict[str, Any]:
    """Model, optimizer, schedule and the number of updates, to be saved. All ranks call it."""
    return _state(engine, form) | {"updates": _updates(engine)}


def wanted(engine: Engine, form: OptimizerFormat) -> dict[str, Any]:
    """What ``restore`` takes, to be loaded into: tensors of this layout, some of them the optimizer's own."""
    for optimizer in _optimizers(engine):
        optimizer.load_state_dict(optimizer.state_dict())  # makes the moments of one that has taken no step
    return _state(engine, form, is_loading=True)


def _state(engine: Engine, form: OptimizerFormat, is_loading: bool = False) -> dict[str, Any]:
    model = engine.inner.sharded_state_dict(metadata={**CONTENT})
    rest = {"model": model, "schedule": engine.schedule.state_dict()}
    if form == "fully_reshardable":
        return rest | {"optimizer": engine.optimizer.sharded_state_dict(model, is_loading, metadata={**RESHARDABLE})}
    kept = {id(held.data): held for held in nested_values(model) if isinstance(held, ShardedTensor)}
    stretches = {
        at: _stretches(optimizer, parameter, kept[id(parameter)])
        for at, (optimizer, parameter) in enumerate(_updated(engine))
    }
    return rest | {"optimizer": stretches}


def weights(inner: MegatronModule) -> dict[str, Any]:
    """The model's tensors alone, to be loaded into: not what modules keep beside them, such as FP8 scales."""
    held: dict[str, Any] = inner.sharded_state_dict(metadata={**CONTENT})
    return {key: tensor for key, tensor in held.items() if not key.endswith("_extra_state")}


def _updated(engine: Engine) -> Iterator[tuple[Any, Parameter]]:
    """(optimizer, parameter) of each parameter that this rank updates a part of."""
    for optimizer in _optimizers(engine):
        for parameter in optimizer.model_param_gbuf_map:
            yield optimizer, parameter


def _stretches(optimizer: Any, parameter: Parameter, whole: ShardedTensor) -> dict[str, ShardedTensor]:
    """{state: this rank's part [n] of it, among all [elements] that the parameter's key stands for}."""
    axes = whole.prepend_axis_num  # of layers or experts: each parameter is one place along them
    if whole.global_shape[axes:] != whole.local_shape:
        raise PatchlaneError(f"{whole.key} is split within a parameter", "train without tensor parallelism")
    before = 0
    for extent, at in zip(whole.global_shape[:axes], whole.global_offset[:axes], strict=True):
        before = before * extent + at
    first = before * parameter.numel() + optimizer._get_model_param_range_map(parameter)["param"].start
    size = (math.prod(whole.global_shape),)
    held = optimizer._get_main_param_and_optimizer_states(parameter)
    names = OF_MUON if getattr(parameter, muon.MARK, False) else STATES
    parts = {name: held[name].detach() for name in names}
    return {
        name: ShardedTensor(f"optimizer.{name}.{whole.key}", part, part.dtype, tuple(part.shape), size, (first,), None)
        for name, part in parts.items()
    }


def _updates(engine: Engine) -> int:
    """AdamW steps taken, as its bias correction counts them."""
    inner = _optimizers(engine)[0].optimizer
    counts = [state["step"] for state in inner.state.values() if "step" in state]  # torch's AdamW
    counts += [group["step"] for group in inner.param_groups if "step" in group]  # Transformer Engine's
    return int(max(counts, default=0))


def restore(engine: Engine, loaded: dict[str, Any], form: OptimizerFormat) -> None:
    """Put what was loaded into model, optimizers and schedule.

    Rates and decay of the optimizers' groups are this layout's own: the schedule sets them.
    """
    engine.inner.load_state_dict(loaded["model"])
    if form == "fully_reshardable":
        engine.optimizer.load_state_dict(loaded["optimizer"])
    else:
        _restore_stretches(engine, loaded)
    engine.schedule.num_steps = 0  # Megatron adds what it loads to the steps that were taken
    engine.schedule.load_state_dict(loaded["schedule"])


def _restore_stretches(engine: Engine, loaded: dict[str, Any]) -> None:
    for optimizer in _optimizers(engine):
        plain = optimizer.state_dict()
        for group in plain["optimizer"]["param_groups"]:
            group["step"] = loaded["updates"]
        optimizer.load_state_dict(plain)
    for at, (optimizer, parameter) in enumerate(_updated(engine)):
        with torch.no_grad():
            optimizer._set_main_param_and_optimizer_states(parameter, loaded["optimizer"][at])
