"""A kept call made again: in other modes, by another form, with other kinds and sizes of inputs.

Each way says of itself how the call then ended beside how it ends as it is: ``AS`` where both agree. Nothing here
says that they should; the runner asks of the patched tree what the pristine tree does.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import math
import os
import pickle
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reproducers.probe.arm.census import (
    AS,
    HIDDEN,
    LEFT_BEHIND,
    MOVED,
    OTHERWISE,
    PAST,
    SETS,
    TWICE,
    WHOLE,
    inputs,
    modes,
    state,
    values,
)
from reproducers.probe.arm.census.calls import Call, Heard
from reproducers.probe.arm.census.inputs import CASTS, FLOATS, INTS, KINDS, MODES, WANTS, Given, Subclass
from reproducers.probe.arm.census.modes import Collectives, Cost, Counted, Filled, Made, uncollected
from reproducers.probe.measuring import host_waits

NONE, UNLIKE = "they have none", f"{OTHERWISE}: unlike differences of gradients"
THREAD_S = 60.0  # after which a call in a thread has not ended
WAIT_S = 1.0  # for a call in the midst of another, which may hold a lock
BETWEEN = (4, 12)  # places in the midst of a call, and of one that takes less than CHEAP_S
CHEAP_S = 0.05
DEAREST = 4  # calls of the same cost that the next fact may take
SIZES = 2  # lengths of dimensions that are varied
MORE = 10  # calls of other sizes after which nothing more may be alive
CHANGED = 6  # inputs that are changed between forward and backward
PART = 8  # of the elements of the largest input: the measure of what is held
FAILS = 3  # operators that fail, each in a call of its own
STEPS = (1e-2, 1e-3)  # along a direction, to see how gradients change
NEARLY, ROUNDING = 0.3, 1e-5  # of that change; of the gradients, for what fp32 leaves of a difference
LOW = 0.15  # of the largest value: results in two precisions that are alike
ROUNDED = {torch.float32: 1e-5}  # sums in another order, as other memory and modes have them; in TF32 it were more


@dataclass
class Ended:
    """How a call ended: its value or the error's type, gradients by path, what it said.

    ``left``: arguments that it changes in place, by path.
    """

    value: Any = None
    raised: str = ""
    grads: dict[str, Tensor] = field(default_factory=dict)
    left: dict[str, Tensor] = field(default_factory=dict)
    said: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> str:
        return f"raises {self.raised}" if self.raised else values.kind(self.value, shapes=False).replace(" grad", "")


def _seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


class Again:
    """Ways in which one call is made again. ``wanted``: names of the facts to take, None for all; ``seed`` draws some.

    ``asked``: the facts that are still to be taken, those first that wrong patches most often spoil. None is begun for
    which the processor time until ``until`` may not do; nothing is broken off, for autograd's engine does not survive
    an error that comes from outside.
    """

    until = math.inf

    def __init__(self, call: Call, tree: Path, lane: str, wanted: set[str] | None = None, seed: int = 0) -> None:
        self.call, self.tree, self.lane, self.wanted, self.seed = call, tree, lane, wanted, seed
        self.given = Given(call.target.object, call.args, call.named)
        self.asked = deque[tuple[str, Callable[[], Any]]]()
        self.spent = 0.0  # processor time of the facts so far
        self.changes = set[str]()  # paths of arguments that it changes in place
        self.broken = False  # the GPU: nothing can be told any more
        given = self.given.copy()
        before, begun = values.digests(given.whole), time.process_time()
        self.base = self.make(given)
        self.cost = time.process_time() - begun
        self.changes = {path for path, now in values.digests(given.whole).items() if before.get(path) != now}
        self.base.left = self._left_in(given)

    @property
    def made(self) -> str:
        """Whether the call, made again as it was, ends as it did."""
        ended = str(self.call.facts["ends"])
        if self.base.raised and not ended.startswith("raises"):
            return f"{OTHERWISE}: {self.base.kind}"
        return AS

    def take(self, name: str, ask: Callable[[], Any]) -> None:
        """Ask for a fact when its turn comes, where it is wanted."""
        if self.wanted is None or name in self.wanted:
            self.asked.append((name, ask))

    @property
    def left(self) -> bool:
        """Whether there is a fact to ask for, and time for it."""
        return bool(self.asked) and time.process_time() + DEAREST * self.cost <= self.until

    @property
    def turn(self) -> tuple[bool, float]:
        """Whose is least is next: who has taken the least time, and last what leaves traces of its own in torch."""
        return bool(self.asked) and self.asked[0][0] == WHOLE, self.spent

    def next(self) -> dict[str, Any]:
        """The next fact, where it can be told; of one that another tree told, that this one cannot."""
        name, ask = self.asked.popleft()
        begun = time.process_time()
        try:
            told = ask()
        except Exception as error:
            told = None if self.wanted is None else f"{OTHERWISE}: {type(error).__name__}"
        if told is None and self.wanted is not None:
            told = f"{OTHERWISE}: it cannot be told"
        if self.lane == "cuda" and not modes.gpu_works():
            told, self.broken = f"{OTHERWISE}: the GPU fails", True
        self.spent += time.process_time() - begun
        return {} if told is None else {name: told}

    def make(self, given: Given, twice: bool = False, between: Callable[[], object] | None = None) -> Ended:
        """Call, and go backward where the value wants to. ``twice``: backward again, whose gradients are returned.

        ``between``: is called after forward.
        """
        return self._made_by(self.call.target.on(given.owner), given, twice, between)

    def _made_by(
        self,
        function: Callable[..., Any],
        given: Given,
        twice: bool = False,
        between: Callable[[], object] | None = None,
    ) -> Ended:
        _seeded()
        heard = Heard()
        try:
            with heard.listening(), self._ones():
                value = function(*given.args, **given.named)
                if between:
                    between()
                grads = self._backward(value, given, twice)
        except (Exception, SystemExit) as error:
            return Ended(raised=type(error).__name__, said=heard.said)
        return Ended(value, "", grads, self._left_in(given), heard.said)

    def _left_in(self, given: Given) -> dict[str, Tensor]:
        """Those arguments that the call changes in place."""
        return {path: one for path, one in given.everything.items() if path in self.changes} if self.changes else {}

    def _ones(self) -> contextlib.AbstractContextManager[Any]:
        return Filled() if self.lane == "cpu" else contextlib.nullcontext()

    def _backward(self, value: Any, given: Given, twice: bool) -> dict[str, Tensor]:
        made, wanted = inputs.differentiable(value), inputs.leaves(given)
        if not made or not wanted or not torch.is_grad_enabled():
            return {}
        weights = [inputs.weights(one) for one in made]
        for last in (False, True) if twice else (True,):
            found = torch.autograd.grad(
                made,
                list(wanted.values()),
                [w.to(m.dtype) for w, m in zip(weights, made, strict=True)],
                retain_graph=not last,
                allow_unused=True,
            )
        return {path: grad for path, grad in zip(wanted, found, strict=True) if grad is not None}

    def like(self, other: Ended, near: float | None = None, base: Ended | None = None) -> str:
        """Whether another ending is as the call's own."""
        base = base or self.base
        if base.raised or other.raised:
            return AS if base.raised == other.raised else f"{OTHERWISE}: {other.kind} for {base.kind}"
        if not values.alike(base.value, other.value, near):
            return f"{OTHERWISE}: {other.kind} for {base.kind}" if other.kind != base.kind else OTHERWISE
        left = base.left.keys() & other.left.keys()
        if not all(values.alike(base.left[path], other.left[path], near) for path in left):
            return f"{OTHERWISE}: arguments changed in place"
        both = base.grads.keys() & other.grads.keys()
        grads = all(values.alike(base.grads[path], other.grads[path], near) for path in both)
        return AS if grads else f"{OTHERWISE}: gradients"

    # modes and forms ------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """List all ways, the dearer the information the earlier."""
        sized = not self.base.raised and bool(self.given.tensors)
        lengths = self._lengths() if sized else []
        self._ask_of_gradients()
        for length in lengths:
            self._ask_of_costs(length)
        self._ask_of_modes()
        self._ask_of_modules()
        if sized:
            self._ask_of_kinds()
        for length in lengths:
            self._ask_of_sizes(length)
        self.take("in the midst of another thread's call", self._interrupted)
        if sized:
            self._ask_of_several()
        self.take(WHOLE, self._one_graph)

    def _ask_of_gradients(self) -> None:
        self.take("a second time", self._second)
        self.take("backward twice", lambda: self.like(self.make(self.given.copy(), twice=True)))
        self.take("gradients", self._gradients)
        self.take("under checkpoint", self._checkpointed)
        self.take("unnoticed when changed before backward", self._unnoticed)
        self.take("host waits", self._waits)
        self.take("tensors alive after backward", self._alive)
        self.take(PAST, self._past_hooks)
        self.take(TWICE, self._differentiated_twice)

    def _ask_of_modes(self) -> None:
        self.take("under no_grad", lambda: self._within(torch.no_grad()))
        self.take("results kept when it is called again", self._results_kept)
        self.take("after its tensors change", self._rewritten)
        self.take("after its tensors change, under no_grad", lambda: self._rewritten(torch.no_grad()))
        self.take("under autocast", self._autocast)
        self.take("under autocast, one input in bfloat16", self._autocast_of_two)
        self.take("under another default dtype", self._default_dtype)
        self.take("says again", self._says)
        self.take("collectives", self._collectives)
        self.take(SETS, self._sets)
        self.take("by names", self._by_names)
        self.take("in order", self._in_order)
        self.take("with iterators for lists", self._iterated)
        self.take("under inference_mode", lambda: self._within(torch.inference_mode()))
        self.take("in a thread", lambda: self._threaded(self.given.copy()))
        self.take("where an operator fails", self._failing)
        self.take("host waits under no_grad", lambda: self._waits(torch.no_grad()))

    def _ask_of_modules(self) -> None:
        given = self.given
        if given.owner is not None:
            self.take("of a deep copy", lambda: self.like(self.make(given.copy().copy())))
            self.take("of a pickled copy", self._pickled)
        if isinstance(given.owner, nn.Module):
            if any(given.owner.children()):
                self.take("with its parts exchanged", self._exchanged)
            self.take("with eval() and train()", lambda: self.like(self.make(inputs.toggled(given.copy()))))
            self.take(MOVED, lambda: self._after_to(lambda one: one.device.type == "meta"))
            self.take(LEFT_BEHIND, lambda: self._after_to(lambda one: one.device.type != "meta"))
        if isinstance(given.owner if given.owner is not None else self.base.value, nn.Module):
            self.take("deepcopy of the module", lambda: self._taken_by(copy.deepcopy))
            self.take("pickle of the module", lambda: self._taken_by(pickle.dumps))
            for name, cast in CASTS.items():
                self.take(f"dtypes after {name}", partial(self._cast, cast))

    def _one_graph(self) -> str:
        """Traced whole by ``torch.compile``, which leaves to Python what runs under a mode: so under none here."""
        given = self.given.copy()
        try:
            traced = torch.compile(self.call.target.on(given.owner), backend="eager", fullgraph=True)
            _seeded()
            value = traced(*given.args, **given.named)
            ended = Ended(value, "", self._backward(value, given, False), self._left_in(given))
        except Exception as error:
            ended = Ended(raised=type(error).__name__)
        finally:
            torch._dynamo.reset()
        return "raises" if ended.raised else f"{self._near(ended, None)}; {ended.kind}"

    def _second(self) -> str:
        given = self.given.copy()
        first, more = self.make(given), self.given.copy()
        return self.like(self.make(Given(given.owner, more.args, more.named)), base=first)

    def _within(self, mode: Any) -> str:
        with mode:
            return self.like(self.make(self.given.copy()))

    def _autocast(self) -> str:
        with torch.autocast("cuda" if self.lane == "cuda" else "cpu", torch.bfloat16):
            ended = self.make(self.given.copy())
        return AS if ended.kind == self.base.kind else f"{OTHERWISE}: {ended.kind}"

    def _autocast_of_two(self) -> str | None:
        """With the first floating input in bfloat16, as another layer under autocast hands it over."""
        given = self.given.copy()
        mine, every = ([t for t in one.values() if t.is_floating_point()] for one in (given.tensors, given.everything))
        if not mine or len(every) < 2 or mine[0].dtype is torch.bfloat16:
            return None
        given = given.mapped(lambda v: inputs.cast(v, torch.bfloat16, FLOATS) if v is mine[0] else v)
        with torch.autocast("cuda" if self.lane == "cuda" else "cpu", torch.bfloat16):
            ended = self.make(given)
        return f"{self._near(ended, LOW)}; {ended.kind}"

    def _checkpointed(self) -> str | None:
        """Made again by a checkpoint, which asks for each saved tensor once."""
        if not self.base.grads or self.changes:
            return None
        given, made = self.given.copy(), list[Any]()
        function = self.call.target.on(given.owner)

        def forward(*_: Tensor) -> list[Tensor]:
            made.append(function(*given.args, **given.named))
            return inputs.differentiable(made[-1])

        def run(*_: Any, **__: Any) -> Any:
            checkpoint(forward, *inputs.leaves(given).values(), use_reentrant=False)
            return made[0]

        return self.like(self._made_by(run, given))

    def _past_hooks(self) -> int | None:
        """What the graph holds by itself where hooks keep copies of all that is handed to them, as ``_alive``."""
        given, copies = self._wanting(), list[Tensor]()

        def packed(tensor: Tensor) -> int:
            copies.append(tensor.detach().clone())
            return len(copies) - 1

        with self._ones(), Made() as made, torch.autograd.graph.saved_tensors_hooks(packed, copies.__getitem__):
            _seeded()
            given = given.mapped(lambda v: v.clone() if isinstance(v, Tensor) and v.requires_grad else v)
            value = self.call.target.on(given.owner)(*given.args, **given.named)
        if not inputs.differentiable(value):
            return None
        del given
        return self._parts(made.alive([*values.tensors(value).values(), *copies]))

    def _parts(self, elements: list[int]) -> int:
        """Elements in so many parts of the largest input, for a pass in pieces has more tensors that are smaller."""
        largest = max((one.numel() for one in self.given.tensors.values()), default=0)
        return sum(elements) // max(largest // PART, 1)

    def _default_dtype(self) -> str:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            ended = self.make(self.given.copy())
        finally:
            torch.set_default_dtype(usual)
        return f"{self._near(ended, None)}; {ended.kind}"

    def _threaded(self, given: Given) -> str:
        """In a thread that has torch's own defaults."""
        made = list[Ended]()

        def work() -> None:
            _seeded()
            with self._ones():
                made.append(self._alone(given))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(THREAD_S)
        return self.like(made[0]) if made else f"{OTHERWISE}: it does not end"

    def _failing(self) -> str | None:
        """Whether an operator's error reaches the caller, and the same object can be called after it."""
        counted = Counted()
        with counted:
            if self._alone(self.given.copy(), backward=False).raised:
                return None
        for place in sorted({1 + counted.count * n // FAILS for n in range(FAILS)}):
            given, more = self.given.copy(), self.given.copy()
            with Counted([place], modes.no_memory) as met:
                ended = self._alone(given, backward=False)
            if met.count >= place and ended.raised != modes.NO_MEMORY:
                return f"{OTHERWISE}: {ended.kind}"
            if not self.changes and (then := self._threaded(Given(given.owner, more.args, more.named))) != AS:
                return f"{OTHERWISE} in the next call{then.removeprefix(OTHERWISE)}"
        return AS

    def _other(self) -> Given:
        """Arguments of other values."""
        return self._changed(lambda t: inputs.like(t, t.detach() * 0.5) if t.is_floating_point() else t)

    def _results_kept(self) -> str | None:
        """Whether a result stays what it is while the same object is called with other values."""
        given, other = self.given.copy(), self._other()
        first = self.make(given)
        if first.raised:
            return None
        before = values.digests(first.value)
        self.make(Given(given.owner, other.args, other.named))
        return AS if values.digests(first.value) == before else OTHERWISE

    def _rewritten(self, mode: contextlib.AbstractContextManager[Any] | None = None) -> str | None:
        """Called again with the same tensors, of other values by now, as after a step: a copy of before is stale."""
        if self.changes:
            return None
        given, fresh = self.given.copy(), self.given.copy()
        tensors = [*given.everything.values(), *fresh.everything.values()]  # not what the call keeps
        with mode or contextlib.nullcontext():
            if self.make(given).raised:
                return None
            inputs.rewrite(tensors)
            return self.like(self.make(given), base=self.make(fresh))

    def _exchanged(self) -> str:
        """A copy in the place of each of its modules, as a user's own head or an adapter: those of before hold NaN."""
        given = self.given.copy()
        children = dict(given.owner.named_children())
        for name, copied in values.copied(children).items():
            setattr(given.owner, name, copied)
        for tensor in (one for child in children.values() for one in (*child.parameters(), *child.buffers())):
            if tensor.is_floating_point():
                tensor.data = torch.full_like(tensor, math.nan)
        return self.like(self.make(given))

    def _interrupted(self) -> str | None:
        """Whether a call ends as it does alone while another thread makes one of other values in the midst of it.

        Triton's interpreter serves one thread, whatever the kernels do.
        """
        if os.environ.get("TRITON_INTERPRET") == "1":
            return None
        counted = Counted()
        with counted:
            if self.make(self.given.copy()).raised:
                return None
        late, places = list[threading.Thread](), range(1, counted.count)
        step = max(1, -(-len(places) // BETWEEN[self.cost < CHEAP_S]))

        def other() -> None:
            if not late:  # else a lock is held until the call has ended
                thread = threading.Thread(target=self._alone, args=(self._other(),), daemon=True)
                thread.start()
                thread.join(WAIT_S)
                late.extend([thread] * thread.is_alive())

        with Counted(places[::step], other):
            ended = self.make(self.given.copy())
        for thread in late:
            thread.join(THREAD_S)
        return self.like(ended)

    def _alone(self, given: Given, backward: bool = True) -> Ended:
        """As ``make``, with nothing of torch's or Python's that other threads share set anew."""
        try:
            value = self.call.target.on(given.owner)(*given.args, **given.named)
            return Ended(value, "", self._backward(value, given, False) if backward else {}, self._left_in(given))
        except Exception as error:
            return Ended(raised=type(error).__name__)

    def _collectives(self) -> list[str] | None:
        with Collectives() as seen:
            ended = self.make(self.given.copy())
        return None if ended.raised else sorted(seen.called)

    def _sets(self) -> list[str]:
        """What it leaves changed where flags are unlike the defaults: to set what is set already changes nothing."""
        given = self.given.copy()
        with state.stirred():
            before = state.state()
            self._alone(given, backward=False)
            return state.changed(before, state.state())

    def _iterated(self) -> str | None:
        """Lists handed over as iterators, where upstream says that it takes an iterable."""
        given, signature = self.given.copy(), self._signature()
        bound = signature.bind(*given.args, **given.named)
        said = f"{inspect.getdoc(self.call.target.on(given.owner)) or ''} {signature}".lower()
        lists = {name: iter(value) for name, value in bound.arguments.items() if type(value) is list}
        if not lists or "iterable" not in said:
            return None
        bound.arguments.update(lists)
        return self.like(self.make(Given(given.owner, list(bound.args), dict(bound.kwargs))))

    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.call.target.on(self.given.owner))

    def _by_names(self) -> str | None:
        given = self._named()
        return self.like(self.make(given)) if given else None

    def _named(self) -> Given | None:
        """Every argument by its name, where each has one that a caller may use."""
        given = self.given.copy()
        if not given.args:
            return None
        bound = self._signature().bind(*given.args, **given.named)
        kinds = {name: parameter.kind for name, parameter in self._signature().parameters.items()}
        if any(
            kinds[name] in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
            for name in bound.arguments
        ):
            return None
        named = dict(bound.arguments)
        for name in [name for name in named if kinds[name] is inspect.Parameter.VAR_KEYWORD]:
            named |= named.pop(name)
        return Given(given.owner, [], named)

    def _in_order(self) -> str | None:
        given = self._ordered()
        return self.like(self.make(given)) if given else None

    def _ordered(self) -> Given | None:
        """Every argument that has a place at its place, those left out as well."""
        given, args = self.given.copy(), list[Any]()
        bound = self._signature().bind(*given.args, **given.named)
        bound.apply_defaults()
        for name, parameter in self._signature().parameters.items():
            if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
                break
            args.append(bound.arguments.pop(name))
        rest = {name: value for name, value in given.named.items() if name in bound.arguments}
        return Given(given.owner, args, rest) if args else None

    def _short(self) -> Given | None:
        """By names, arguments that are as by default left out."""
        given, usual = self._named() or self.given.copy(), self._signature().parameters
        named = {
            name: value
            for name, value in given.named.items()
            if name not in usual or not values.is_default(value, usual[name].default)
        }
        return None if len(named) == len(given.named) else Given(given.owner, given.args, named)

    def _pickled(self) -> str | None:
        given = self.given.copy()
        given.owner = pickle.loads(pickle.dumps(given.owner))
        return self.like(self.make(given))

    def _module(self) -> nn.Module:
        """The call's own module, or the one that it makes."""
        given = self.given.copy()
        module = given.owner if given.owner is not None else self.make(given).value
        assert isinstance(module, nn.Module)
        return module

    def _taken_by(self, use: Callable[[nn.Module], object]) -> str:
        try:
            use(self._module())
        except Exception as error:
            return f"raises {type(error).__name__}"
        return AS

    def _cast(self, cast: Callable[[nn.Module], object]) -> str:
        """Kinds of what a checkpoint of the module has after a cast."""
        module = self._module()
        cast(module)
        held = {name: one for name, one in module.state_dict().items() if isinstance(one, Tensor)}
        return "; ".join(f"{name} {inputs.short(one.dtype)} {one.device.type}" for name, one in held.items())

    def _wanting(self) -> Given:
        """With a gradient wanted by every argument that can have one."""
        return self.given.copy().mapped(
            lambda v: v.detach().requires_grad_() if isinstance(v, Tensor) and v.is_floating_point() else v
        )

    def _gradients(self) -> list[str] | None:
        """Arguments that get a gradient where all want one."""
        ended = self.make(self._wanting())
        return None if ended.raised else sorted(ended.grads)

    def _differentiated_twice(self) -> str | None:
        """Whether gradients have gradients, and those that differences of gradients show."""
        given = self._wanting()
        wanted = list(inputs.leaves(given).values())
        try:
            with self._ones():
                first = self._gradients_at(given, graph=True)
                again = [one for one in first if one is not None and one.requires_grad]
                if not again:  # made by forward already, they have none
                    return NONE
                along = [inputs.weights(one).to(one.dtype) for one in wanted]
                pairs = [
                    (one, way) for one, way in zip(first, along, strict=True) if one is not None and one.requires_grad
                ]
                for one in wanted:
                    one.grad = None
                torch.autograd.backward(*map(list, zip(*pairs, strict=True)))  # unlike grad it comes by every function
        except Exception as error:
            return f"raises {type(error).__name__}"
        second = [torch.zeros_like(one) if one.grad is None else one.grad.detach() for one in wanted]
        if any(one.dtype not in (torch.float32, torch.float64) for one in wanted):
            return AS
        return AS if any(self._differs_by(given, along, second, step) for step in STEPS) else UNLIKE

    def _gradients_at(self, given: Given, graph: bool = False) -> list[Tensor | None]:
        _seeded()
        made = inputs.differentiable(self.call.target.on(given.owner)(*given.args, **given.named))
        weights = [inputs.weights(one).to(one.dtype) for one in made]
        wanted = list(inputs.leaves(given).values())
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            made, wanted, weights, create_graph=graph, allow_unused=True
        )
        return [*found]

    def _differs_by(self, given: Given, along: list[Tensor], second: list[Tensor], step: float) -> bool:
        """Whether gradients a step this way and that way along ``along`` differ by what ``second`` says."""
        ends = list[list[Tensor | None]]()
        with self._ones():
            for sign in (step, -step):
                moved = given.copy()
                with torch.no_grad():
                    for one, way in zip(inputs.leaves(moved).values(), along, strict=True):
                        one.add_(way, alpha=sign)
                ends.append(self._gradients_at(moved))
        rows = [
            ((after - before).double() / (2 * step), said.double())
            for after, before, said in zip(*ends, second, strict=True)
            if after is not None and before is not None
        ]
        apart = sum(float((seen - said).square().sum()) for seen, said in rows)
        size = sum(float(seen.square().sum()) for seen, _ in rows)
        noise = sum(float(after.double().square().sum()) for after in ends[0] if after is not None)
        return math.sqrt(apart) <= NEARLY * math.sqrt(size) + ROUNDING * math.sqrt(noise) / step

    def _unnoticed(self) -> list[str] | None:
        """Inputs that may be changed between forward and backward, so that gradients are wrong and nobody is told."""
        if not self.base.grads:
            return None
        inputs = [path for path, one in self.given.everything.items() if one.is_floating_point() and one.numel()]
        return [path for path in inputs[:CHANGED] if self._differs_when_changed(path)]

    def _differs_when_changed(self, path: str) -> bool:
        given = self.given.copy()
        ended = self.make(given, between=lambda: inputs.changed_in_place(given.everything[path]))
        both = self.base.grads.keys() & ended.grads.keys()
        return not ended.raised and not all(values.alike(self.base.grads[one], ended.grads[one]) for one in both)

    def _after_to(self, told: Callable[[Tensor], bool]) -> list[str]:
        """Members of a module whose tensors are so after it was moved to another device."""
        owner = self.given.copy().owner.to("meta")
        return sorted({values.place(path) for path, one in values.tensors(owner).items() if told(one)})

    def _waits(self, mode: Any = None) -> int | None:
        given = self.given.copy()
        with mode or contextlib.nullcontext():
            ended = list[Ended]()
            places = host_waits(lambda: ended.append(self.make(given)), self.tree, self.lane)
        return None if ended[0].raised else sum(places.values())

    def _alive(self) -> int | None:
        """What Python still knows, results and arguments left out, while the results are held: in parts of an input."""
        given = self._wanting()
        with Made() as made:
            ended = self.make(given)
        if ended.raised or not ended.grads:
            return None
        held = (given.everything, values.tensors(ended.value), ended.grads)
        return self._parts(made.alive([one for group in held for one in group.values()]))

    def _says(self) -> dict[str, int]:
        """What is said when the call has been made before."""
        given = self.given.copy()
        self.make(given)
        more = self.given.copy()
        return dict(self.make(Given(given.owner, more.args, more.named)).said)

    # inputs ---------------------------------------------------------------------------------------------------------

    def _ask_of_kinds(self) -> None:
        """Other kinds of inputs, where the call takes those that it has."""
        for kind in ("strided", "in wider rows", "of a subclass", "as parameters"):
            name = f"with {kind} inputs" if kind == "strided" else f"with inputs {kind}"
            self.take(name, partial(self._of_kind, KINDS[kind]))
        for dtype in FLOATS:
            self.take(f"in {inputs.short(dtype)}", partial(self._in, dtype, FLOATS, LOW))
        for dtype in INTS:
            self.take(f"with integers in {inputs.short(dtype)}", partial(self._in, dtype, INTS, None))
        if self.lane == "cpu":  # a kernel reads where there is no memory of the tensor, and that is the end of the GPU
            self.take("on meta", lambda: self._meta(lambda _: False))
            if any(map(inputs.bounds, self.given.tensors.values())):
                self.take("on meta, bounds on the host", lambda: self._meta(inputs.bounds))
            self.take("with integers doubled", self._doubled)
        self.take(HIDDEN, self._unheard)
        self.take("of zeros", lambda: self._filled(lambda t: torch.zeros_like(t) if t.is_floating_point() else t))
        for word in (False, True):
            self.take(f"all {word}", partial(self._filled, partial(inputs.bools, word)))

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Given:
        return self.given.copy().mapped(lambda v: change(v) if isinstance(v, Tensor) else v)

    def _of_kind(self, change: Callable[[Tensor], Tensor]) -> str:
        return self.like(self.make(self._changed(change)))

    def _in(self, dtype: torch.dtype, family: tuple[torch.dtype, ...], near: float | None) -> str | None:
        """The value, and what dtypes it has."""
        given = self.given.copy()
        mine = [t for t in given.tensors.values() if t.dtype in family]
        if not mine or all(t.dtype is dtype for t in mine):
            return None
        if dtype in INTS:
            top = torch.iinfo(dtype)
            if any(t.numel() and not (top.min <= int(t.min()) and int(t.max()) <= top.max) for t in mine):
                return None
            if top.bits < 32 and any(map(inputs.bounds, mine)):  # nobody packs sequences by these
                return None
        elif isinstance(given.owner, nn.Module):
            given.owner.to(dtype)
        ended = self.make(given.mapped(lambda v: inputs.cast(v, dtype, family) if isinstance(v, Tensor) else v))
        return f"{self._near(ended, near)}; {ended.kind}"

    def _near(self, ended: Ended, near: float | None) -> str:
        if ended.raised:
            return "raises"
        mine, other = values.tensors(self.base.value), values.tensors(ended.value)
        if mine.keys() != other.keys() or any(mine[path].shape != other[path].shape for path in mine):
            return OTHERWISE
        mine |= {f"gradient {path}": self.base.grads[path] for path in self.base.grads.keys() & ended.grads.keys()}
        other |= {f"gradient {path}": one for path, one in ended.grads.items()}
        agree = (values.alike(mine[path], other[path], near or ROUNDED.get(mine[path].dtype, 1e-9)) for path in mine)
        return AS if all(agree) else OTHERWISE

    def _meta(self, stays: Callable[[Tensor], bool]) -> str:
        given = self._changed(lambda t: t if stays(t) else t.to("meta"))
        if isinstance(given.owner, nn.Module):
            given.owner.to("meta")
        ended = self.make(given)
        return "raises" if ended.raised else values.kind(ended.value)

    def _filled(self, fill: Callable[[Tensor], Tensor]) -> str | None:
        given = self.given.copy()
        before = values.digests(given.tensors)
        given = given.mapped(lambda v: inputs.like(v, fill(v)) if isinstance(v, Tensor) else v)
        if values.digests(given.tensors) == before:
            return None
        ended = self.make(given)
        if ended.raised:
            return f"raises {ended.raised}"
        return f"{'' if values.finite([ended.value, ended.grads]) else 'not '}finite; {ended.kind}"

    def _unheard(self) -> list[str] | None:
        """Inputs that hold NaN alone, of which no result or gradient shows one: a fault of before is hidden."""
        floats = [path for path, one in self.given.tensors.items() if one.is_floating_point() and one.numel()]
        if not values.finite([self.base.value, self.base.grads]):
            return None
        return [path for path in floats[:CHANGED] if not self._shows(path)]

    def _shows(self, path: str) -> bool:
        given = self.given.copy()
        poisoned = given.tensors[path]
        with torch.no_grad():
            poisoned.fill_(math.nan)
        ended = self.make(given)
        return bool(ended.raised) or not values.finite([ended.value, ended.grads, ended.left])

    def _doubled(self) -> str | None:
        """Whether indices and bounds that point beyond are refused."""
        if not any(t.dtype in INTS and t.numel() for t in self.given.tensors.values()):
            return None
        ended = self.make(self._changed(lambda t: t * 2 + 1 if t.dtype in INTS else t))
        return f"raises {ended.raised}" if ended.raised else "taken"

    # several of these at once ---------------------------------------------------------------------------------------

    def _ask_of_several(self) -> None:
        """Kinds, dtypes and modes of tensors and forms of the call, together as nobody foresees them."""
        forms = {"as given": self.given.copy, "by names": self._named, "in order": self._ordered, "short": self._short}
        draw = random.Random(f"{self.seed} {self.call.key}")
        every = list(itertools.product(KINDS, MODES))
        for kind, mode in draw.sample(every, len(every)):
            dtype, form, wants = draw.choice((None, None, *FLOATS)), draw.choice(list(forms)), draw.choice(list(WANTS))
            said = f"{kind}, {inputs.short(dtype) if dtype else 'dtypes kept'}, {mode}, {form}, {wants}"
            self.take(f"drawn: {said}", partial(self._together, kind, dtype, mode, forms[form], WANTS[wants]))

    def _together(
        self, kind: str, dtype: torch.dtype | None, mode: str, form: Callable[[], Given | None], wants: bool | None
    ) -> str | None:
        given = form()
        if given is None:
            return None
        if dtype and isinstance(given.owner, nn.Module):
            given.owner.to(dtype)

        def change(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            made = inputs.cast(value, dtype, FLOATS) if dtype else value
            if wants is not None and made.is_floating_point():
                made = inputs.like(made, made).requires_grad_(wants)
            return KINDS[kind](made)

        with MODES[mode]():
            ended = self.make(given.mapped(change))
        kind = ended.kind.replace(f"{Subclass.__name__} ", "")  # what is made anew need not be of the inputs' class
        return f"{self._near(ended, LOW if dtype else None)}; {kind}"

    # sizes ----------------------------------------------------------------------------------------------------------

    def _lengths(self) -> list[int]:
        """Lengths that most dimensions of the arguments have, the longest first among equals."""
        found = Counter(n for t in self.given.tensors.values() for n in t.shape if n > 1 and not inputs.bounds(t))
        for n in self._widths():
            found.pop(n, None)
        return sorted(found, key=lambda n: (-n * (n in self._numbers()), -found[n], -n))[:SIZES]

    def _widths(self) -> set[int]:
        """Widths of rows that the object's own weights fix: with others the call is none that upstream promises."""
        owner = self.given.owner
        fixed = {n for one in owner.parameters() for n in one.shape} if isinstance(owner, nn.Module) else set()
        return fixed & {t.shape[-1] for t in self.given.tensors.values() if t.dim() > 1 and t.is_floating_point()}

    def _numbers(self) -> set[int]:
        return {int(t.max()) for t in self.given.tensors.values() if t.dtype in INTS and t.dim() == 1 and t.numel() > 1}

    def _sized(self, length: int, to: int) -> Given:
        """Every dimension, number and row of bounds of this length made another length."""

        def change(value: Any) -> Any:
            if isinstance(value, int):
                return to if value == length else value
            made = value.detach()
            if inputs.bounds(value):
                if int(value[-1]) != length:
                    return made
                return (made * to // length if to > length else made.clamp(max=to)).to(value.dtype)
            for dim, n in enumerate(value.shape):
                if n == length:
                    made = made.index_select(dim, torch.arange(to, device=value.device) % n)
            if value.dtype in INTS and to < length:  # what counts or points within the length does so still
                made = torch.where((made >= to) & (made < length), made % max(to, 1), made)
                made = torch.where(made == length, to, made).to(value.dtype)
            return inputs.like(value, made)

        return self.given.copy().mapped(change)

    def _ask_of_costs(self, length: int) -> None:
        """What the call costs, and what one of four times the length does."""
        more = f"with {4 * length} for {length}"
        one, four = (functools.cache(partial(self._cost, length, to)) for to in (length, 4 * length))
        self.take(f"largest tensor with {length}", lambda: one()[0])
        self.take(f"peak with {length}", lambda: one()[1])
        self.take(f"largest tensor {more}", lambda: four()[0])
        self.take(f"peak {more}", lambda: four()[1])

    def _ask_of_sizes(self, length: int) -> None:
        """None, one and twice as many; what four times as many wait for; what many sizes leave behind."""
        for to in (0, 1, 2 * length):
            self.take(f"{length} made {to}", partial(self._kind_at, length, to))
        four = f"host waits with {4 * length} for {length}"
        self.take(four, lambda: self._waits_of(self._sized(length, 4 * length)))
        self.take(f"tensors left by more sizes than {length}", lambda: self._left(length))

    def _kind_at(self, length: int, to: int) -> str:
        ended = self.make(self._sized(length, to))
        return f"raises {ended.raised}" if ended.raised else values.kind(ended.value).replace(" grad", "")

    def _cost(self, length: int, to: int) -> tuple[int, int] | tuple[None, None] | tuple[str, str]:
        """Elements of the largest tensor, and at the peak; None of both where the call does not end, or its error."""
        given, seen = self._sized(length, to) if to != length else self.given.copy(), Cost()
        with uncollected(), seen:
            ended = self.make(given)
        if ended.raised and self.wanted is not None:
            error = f"{OTHERWISE}: {ended.raised}"
            return error, error
        return (None, None) if ended.raised else (seen.elements, seen.peak)

    def _waits_of(self, given: Given) -> int | None:
        ended = list[Ended]()
        places = host_waits(lambda: ended.append(self.make(given)), self.tree, self.lane)
        return None if ended[0].raised else sum(places.values())

    def _left(self, length: int) -> int | None:
        """Tensors that MORE calls of other sizes leave, on one object, results dropped, after the first two."""
        owner = self.given.copy().owner

        def once(to: int) -> bool:
            given = self._sized(length, to)
            return not self.make(Given(owner, given.args, given.named)).raised

        if not all([once(length), once(length + 1)]):
            return None
        with Made() as made:
            able = all([once(length + 2 + more) for more in range(MORE)])
        return len(made.alive([])) if able else None
