"""What a checkpoint holds of an engine, as Megatron shards it with packs 36 and 37."""

from __future__ import annotations

import copy
from typing import Any

from model.step.engine import Engine

# the one format of 0.19.0's distributed optimizer that loads at another degree of data or expert parallelism; it
# gathers a data-parallel group's optimizer state in host memory
CONTENT = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def _optimizers(engine: Engine) -> list[Any]:
    """The distributed optimizers: of dense parameters and, with expert parallelism, of experts."""
    optimizers: list[Any] = getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])
    return optimizers


def state(engine: Engine, loading: bool) -> dict[str, Any]:
    """Model, optimizer, schedule and the number of updates, to be saved or to be loaded into."""
    model = engine.inner.sharded_state_dict(metadata=CONTENT)
    optimizer = engine.optimizer.sharded_state_dict(model, is_loading=loading, metadata=CONTENT)
    content = {"model": model, "optimizer": optimizer, "schedule": engine.schedule.state_dict()}
    return content if loading else content | {"updates": _updates(engine)}


def weights(engine: Engine) -> dict[str, Any]:
    """The model's tensors alone, to be loaded into: not what modules keep beside them, such as FP8 scales."""
    model = engine.inner.sharded_state_dict(metadata=CONTENT)
    return {key: held for key, held in model.items() if not key.endswith("_extra_state")}


def _updates(engine: Engine) -> int:
    """AdamW steps taken, as its bias correction counts them."""
    inner = _optimizers(engine)[0].optimizer
    counts = [state["step"] for state in inner.state.values() if "step" in state]  # torch's AdamW
    counts += [group["step"] for group in inner.param_groups if "step" in group]  # Transformer Engine's
    return int(max(counts, default=0))


def settings(engine: Engine, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """What this layout's optimizers hold beside tensors, of ``state(engine, loading=True)`` before anything is loaded.

    Megatron stores its parameter groups too, but groups of one expert-parallel degree do not match another's; rates and
    decay in them are the schedule's to set, so this layout's own will do.
    """
    return [
        copy.deepcopy(
            {key: value for key, value in held.items() if key not in ("param_state", "param_state_sharding_type")}
        )
        for held in _each(engine, wanted["optimizer"])
    ]


def _each(engine: Engine, optimizer: dict[Any, Any]) -> list[Any]:
    """An optimizer's sharded state for each of the chained ones; Megatron nests them only where there are several."""
    chained = len(_optimizers(engine))
    return [optimizer] if chained == 1 else [optimizer[at] for at in range(chained)]


def restore(engine: Engine, mine: list[dict[str, Any]], loaded: dict[str, Any]) -> None:
    """Put what was loaded into model, optimizers and schedule; ``mine`` is what ``settings`` gave."""
    engine.inner.load_state_dict(loaded["model"])
    for optimizer, plain, held in zip(_optimizers(engine), mine, _each(engine, loaded["optimizer"]), strict=True):
        for group in plain["optimizer"]["param_groups"]:
            group["step"] = loaded["updates"]
        optimizer.load_state_dict(plain)
        optimizer.load_parameter_state_from_fully_reshardable(held["param_state"])
    engine.schedule.num_steps = 0  # Megatron adds what it loads to the steps that were taken
    engine.schedule.load_state_dict(loaded["schedule"])
