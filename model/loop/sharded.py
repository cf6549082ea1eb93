"""What a checkpoint holds of an engine, as Megatron shards it; mends what its distributed optimizer gets wrong.

Line numbers are those of megatron-core 0.19.0's optimizer/distrib_optimizer.py.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch

from model.step.engine import Engine

# the one format of 0.19.0's distributed optimizer that loads at another degree of data or expert parallelism; it
# gathers a data-parallel group's optimizer state in host memory
CONTENT = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


def _optimizers(engine: Engine) -> list[Any]:
    """The distributed optimizers: of dense parameters and, with expert parallelism, of experts."""
    found: list[Any] = getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])
    return found


def state(engine: Engine, loading: bool) -> dict[str, Any]:
    """Model, optimizer, schedule and the number of updates, to be saved or to be loaded into."""
    model = engine.inner.sharded_state_dict(metadata=CONTENT)
    with _unpadded(engine):
        optimizer = engine.optimizer.sharded_state_dict(model, is_loading=loading, metadata=CONTENT)
    found = {"model": model, "optimizer": optimizer, "schedule": engine.schedule.state_dict()}
    return found if loading else found | {"updates": _updates(engine)}


@contextlib.contextmanager
def _unpadded(engine: Engine) -> Iterator[None]:
    """Places of parameters in the gradient buffers, counted as the state that is gathered for a checkpoint has them.

    Megatron gathers buckets without the padding at their ends (:1398) and looks for parameters at places that count it
    (:1790). So what lies in a second bucket is saved shifted: with pipeline stages and MTP the word embedding's master
    and moments, which have a bucket of their own.
    """
    buffers = [buffer for optimizer in _optimizers(engine) for buffer in optimizer.buffers]
    padded = [buffer.param_index_map for buffer in buffers]
    for buffer in buffers:
        buffer.param_index_map = _without_padding(buffer)
    try:
        yield
    finally:
        for buffer, places in zip(buffers, padded, strict=True):
            buffer.param_index_map = places


def _without_padding(buffer: Any) -> dict[Any, tuple[int, int, int]]:
    """{parameter: (first element, end, bucket)} of a gradient buffer whose buckets follow each other unpadded."""
    shifts, end = [], 0
    for bucket in buffer.buckets:
        shifts.append(bucket.offset - end)
        end += bucket.numel_unpadded
    places = buffer.param_index_map.items()
    return {parameter: (first - shifts[at], last - shifts[at], at) for parameter, (first, last, at) in places}


def _updates(engine: Engine) -> int:
    """AdamW steps taken, as its bias correction counts them."""
    inner = _optimizers(engine)[0].optimizer
    counts = [state["step"] for state in inner.state.values() if "step" in state]  # torch's AdamW
    counts += [group["step"] for group in inner.param_groups if "step" in group]  # Transformer Engine's
    return int(max(counts, default=0))


def allocate(engine: Engine) -> None:
    """Give each torch optimizer its state, zero, by a step without gradient at rate 0.

    Without Transformer Engine 0.19.0's distributed optimizer asserts that it has some before it loads any
    (:845).
    """
    for chained in _optimizers(engine):
        inner = chained.optimizer
        if inner.state:
            continue
        rates = [group["lr"] for group in inner.param_groups]
        for group in inner.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        inner.step()
        inner.zero_grad(set_to_none=True)
        for group, rate in zip(inner.param_groups, rates, strict=True):
            group["lr"] = rate


def settings(engine: Engine, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """What this layout's optimizers hold beside tensors, of ``state(engine, loading=True)`` before anything is loaded.

    Megatron stores its parameter groups too, but groups of one expert-parallel degree do not match another's; rates and
    decay in them are the schedule's to set, so this layout's own will do.
    """
    return [
        copy.deepcopy({key: value for key, value in one.items() if key != "param_state"})
        for one in _each(engine, wanted["optimizer"])
    ]


def _each(engine: Engine, optimizer: dict[Any, Any]) -> list[Any]:
    """An optimizer's sharded state for each of the chained ones; Megatron nests them only where there are several."""
    chained = len(_optimizers(engine))
    return [optimizer] if chained == 1 else [optimizer[at] for at in range(chained)]


def restore(engine: Engine, mine: list[dict[str, Any]], loaded: dict[str, Any]) -> None:
    """Put what was loaded into model, optimizers and schedule; ``mine`` is what ``settings`` gave."""
    engine.inner.load_state_dict(loaded["model"])
    for optimizer, plain, one in zip(_optimizers(engine), mine, _each(engine, loaded["optimizer"]), strict=True):
        for group in plain["optimizer"]["param_groups"]:
            group["step"] = loaded["updates"]
        _restore(optimizer, plain, one["param_state"])
    engine.schedule.load_state_dict(loaded["schedule"])


def _restore(optimizer: Any, plain: dict[str, Any], tensors: Any) -> None:
    """Parameter groups first, then masters and moments.

    torch's AdamW keeps its step count as a tensor, which 0.19.0 then looks for among the moments: KeyError 'step'
    (:1229), and shares one tensor among all parameters (:1032), so that every parameter's update advances all counts.
    So it is out of sight while the moments are copied, and each gets its own.
    """
    optimizer.load_state_dict({key: value for key, value in plain.items() if key != "param_state_sharding_type"})
    states = [state for state in optimizer.optimizer.state.values() if "step" in state]
    steps = [state["step"] for state in states]
    for state in states:
        state["step"] = None
    optimizer.load_parameter_state_from_fully_reshardable(tensors)
    for state, step in zip(states, steps, strict=True):
        state["step"] = step.clone()
