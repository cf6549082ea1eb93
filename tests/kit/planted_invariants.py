"""Faults planted in a small engine's step, for children of ``forked``: which invariants name each of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import trained

from model.families.sizes import SIZES
from model.invariants import resumed
from model.invariants.invariant import Broken
from model.invariants.watch import Watch
from model.step import engine as engines

Plant = Callable[[Any, Any], contextlib.AbstractContextManager[Any]]
ROUTER = "mlp.router.weight"


def found(data: str, faults: list[str], options: dict[str, Any], size: str = "", **recipe: Any) -> dict[str, str]:
    """{fault: what is said after the step that has it} of a small engine, or one of ``size``, each after a healthy
    step, which are "healthy" together."""
    of = SIZES[size] if size else trained._small()
    engine, batches = trained._engine(data, of, options, learning_rate=1e-3, warmup=0, **recipe)
    watch, said = Watch(engine, 1), {}
    for fault in faults:
        for name in ("healthy", fault):
            with PLANTED[name](watch, batches) as planted:
                watch.begin()
                batch = next(batches)
                outcome = engine.step([batch])
                outcome = planted(outcome) if planted else outcome
                told, broken = watch.check(1, [batch], outcome)
            said[name] = said.get(name, "") + broken
            assert {one.name for one in watch.able} <= told.keys()
    return said


def loaded(data: str, fault: bool) -> str:
    """What is said of a state that is compared with what was saved of it, with a moment of rank 1 shifted by an
    element for a fault."""
    engine, batches = trained._engine(data, trained._small(), {}, learning_rate=1e-3, warmup=0, bf16=True)
    engine.step([next(batches)])
    watch = Watch(engine, 1)
    saved = resumed.held(watch.view)
    if fault and watch.view.rank == 1:
        moment = watch.view.shares[0].moments["exp_avg"]
        moment.copy_(torch.cat([moment[1:], moment.new_zeros(1)]))  # as if it had been saved shifted
    try:
        resumed.compare(saved, watch.view, "step_0000001")
    except Broken as broken:
        return str(broken)
    return ""


def _parameter(watch: Watch, end: str = ROUTER) -> Any:
    """The first one with that end of its name; one of its own on a stage without."""
    return next((p for name, p in watch.view.parameters.items() if name.endswith(end)), torch.zeros(1).requires_grad_())


@contextlib.contextmanager
def _after(change: Callable[[Watch, Any], Callable[[], None] | None], watch: Watch, outcome: Any = None) -> Any:
    """``change`` once the step is taken; what it returns takes the fault out again."""
    back: list[Any] = []

    def planted(outcome: Any) -> Any:
        back.append(change(watch, outcome))
        return outcome

    yield planted
    for undo in back:
        if undo:
            undo()


def _added(tensor: Any, value: float, at: int = 0) -> Callable[[], None]:
    flat = tensor.detach().view(-1)
    old = flat[at].clone()
    flat[at] += value
    return lambda: flat[at].copy_(old)


def _weight(watch: Watch, _: Any) -> Any:
    """Of the last rank alone, of which another one has the master."""
    mine = {id(share.parameter) for share in watch.view.shares}
    other = next((p for p in watch.view.parameters.values() if id(p) not in mine), None)
    return _added(other.data, 1.0) if other is not None and watch.view.rank == dist.get_world_size() - 1 else None


def _copy(watch: Watch, _: Any) -> Any:
    """Of the last stage's copy of the embedding."""
    last = watch.view.rank == dist.get_world_size() - 1
    return _added(_parameter(watch, "word_embeddings.weight").data, 1.0) if last else None


def _master(watch: Watch, _: Any) -> Any:
    return _added(watch.view.shares[0].master, 1.0)


def _moment(watch: Watch, _: Any) -> Any:
    return _added(next(iter(watch.view.shares[0].moments.values())), math.nan)


def _bf16_counts(watch: Watch, _: Any) -> Any:
    router = next(iter(watch.view.routers.values()))
    counts = router.local_tokens_per_expert
    router.local_tokens_per_expert = counts.bfloat16()
    return lambda: setattr(router, "local_tokens_per_expert", counts)


def _count(watch: Watch, _: Any) -> Any:
    share = watch.view.shares[-1]
    state = share.optimizer.state[share.master]
    state["step"] = state["step"] + 3
    return lambda: state.update(step=state["step"] - 3)


def _gradient_times_three(watch: Watch, _: Any) -> None:
    max(watch.view.shares, key=lambda share: float(share.master.grad.norm())).master.grad.mul_(3)


def _one_token_less(watch: Watch, _: Any) -> None:
    for counts in watch.engine.routed[:1]:
        counts[counts.argmax()] -= 1


def _bias(watch: Watch, _: Any) -> Any:
    return _added(next(iter(watch.view.routers.values())).expert_bias, 0.5, at=1)


@contextlib.contextmanager
def _nothing(watch: Watch, batches: Any) -> Iterator[None]:
    yield None


@contextlib.contextmanager
def _cut(watch: Watch, batches: Any) -> Iterator[None]:
    """No gradient reaches a router."""
    hook = _parameter(watch).register_hook(lambda gradient: gradient * 0)
    yield None
    hook.remove()


@contextlib.contextmanager
def _frozen(watch: Watch, batches: Any) -> Iterator[Any]:
    """The update leaves the routers of the main stack, a kind, as they were."""
    routers = [p for name, p in watch.view.parameters.items() if name.startswith("decoder") and ".router." in name]
    held = [(router, router.detach().clone()) for router in routers]
    masters = [(s, s.master.detach().clone()) for s in watch.view.shares if s.kind == "router"]
    now: list[Any] = []

    def planted(outcome: Any) -> Any:
        now.extend((p, p.detach().clone()) for p, _ in held)
        now.extend((s.master, s.master.detach().clone()) for s, _ in masters)
        with torch.no_grad():
            for parameter, before in held:
                parameter.copy_(before)
            for share, before in masters:
                share.master.copy_(before)
        return outcome

    yield planted
    with torch.no_grad():
        for tensor, value in now:
            tensor.copy_(value)


@contextlib.contextmanager
def _leak(watch: Watch, batches: Any) -> Iterator[None]:
    """All documents of a micro-batch are one to the layers."""
    real = engines.packed
    engines.packed = lambda bounds, longest: real(bounds[[0, -1]], longest)
    yield None
    engines.packed = real


@contextlib.contextmanager
def _one_sequence(watch: Watch, batches: Any) -> Iterator[None]:
    """Routers are not told of documents."""
    routers = list(watch.view.routers.values())
    for router in routers:
        router.forward = lambda hidden, mask=None, real=router.forward, **_: real(hidden, mask)
    yield None
    for router in routers:
        del router.forward


@contextlib.contextmanager
def _loss(watch: Watch, batches: Any) -> Iterator[Any]:
    yield lambda outcome: replace(outcome, losses=outcome.losses | {"mtp_loss": math.nan})


def _taken(change: Any) -> Plant:
    return lambda watch, batches: _after(change, watch)


PLANTED: dict[str, Plant] = {
    "healthy": _nothing,
    "losses": _loss,
    "weights": _taken(_weight),
    "copies": _taken(_copy),
    "masters": _taken(_master),
    "moments": _taken(_moment),
    "precision": _taken(_bf16_counts),
    "updates": _taken(_count),
    "gradients": _cut,
    "norm": _taken(_gradient_times_three),
    "moving": _frozen,
    "counts": _taken(_one_token_less),
    "biases": _taken(_bias),
    "balance": _one_sequence,
    "documents": _leak,
}
