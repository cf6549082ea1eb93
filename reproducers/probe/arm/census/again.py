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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reproducers.probe.arm.census import LEFT_BEHIND, MOVED, values
from reproducers.probe.arm.census.calls import Call, Heard
from reproducers.probe.arm.census.modes import Collectives, Cost, Counted, Filled, Made
from reproducers.probe.measuring import host_waits

AS, OTHERWISE = "as it is", "otherwise"
THREAD_S = 60.0  # after which a call in a thread has not ended
WAIT_S = 1.0  # for a call in the midst of another, which may hold a lock
BETWEEN = (4, 12)  # places in the midst of a call, and of one that takes less than CHEAP_S
CHEAP_S = 0.05
DEAREST = 4  # calls of the same cost that the next fact may take
SIZES = 2  # lengths of dimensions that are varied
MORE = 10  # calls of other sizes after which nothing more may be alive
CHANGED = 6  # inputs that are changed between forward and backward
NODES = 1000  # of autograd's graph that are looked at
LOW = 0.15  # of the largest value: results in two precisions that are alike
ROUNDED = {torch.float32: 1e-5}  # sums in another order, as other memory and modes have them; in TF32 it were more
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@dataclass
class Given:
    """What a call is made with."""

    owner: Any
    args: list[Any]
    named: dict[str, Any]

    def copy(self) -> Given:
        made = values.copied({"owner": self.owner, "args": self.args, "named": self.named})
        return Given(made["owner"], made["args"], made["named"])

    def mapped(self, change: Callable[[Any], Any]) -> Given:
        """With every tensor and whole number in the arguments, not in the owner, changed."""
        return Given(self.owner, [_mapped(arg, change) for arg in self.args], _mapped(self.named, change))

    @property
    def tensors(self) -> dict[str, Tensor]:
        return values.tensors({"args": self.args, "named": self.named})

    @property
    def whole(self) -> dict[str, Any]:
        return {"owner": self.owner, "args": self.args, "named": self.named}

    @property
    def everything(self) -> dict[str, Tensor]:
        return values.tensors(self.whole)


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


class Subclass(Tensor):  # type: ignore[misc]
    """A kind of tensor of one's own, as that of a quantized or a distributed parameter is."""


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Tensor):
        made = change(value)
        if made is not value and type(made) is type(value):
            _as_held(value, made, change)
        return made
    if isinstance(value, int) and not isinstance(value, bool):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(inner, change) for inner in value)
    if type(value) is dict:
        return {key: _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (*values.PLAIN, *values.OPAQUE, nn.Module)) or not hasattr(value, "__dict__"):
        return value
    for name, inner in list(vars(value).items()):
        if isinstance(inner, Tensor | int) and not isinstance(inner, bool):
            with contextlib.suppress(Exception):
                setattr(value, name, change(inner))
    return value


def _as_held(tensor: Tensor, made: Tensor, change: Callable[[Any], Any]) -> None:
    """What a tensor holds beside its values, its gradient above all, changed as the tensor is."""
    for name, held in {**vars(tensor), **values.gradient(tensor)}.items():
        with contextlib.suppress(Exception):
            setattr(made, name.lstrip("."), change(held) if isinstance(held, Tensor) else held)


def _seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)


class Again:
    """Ways in which one call is made again. ``wanted``: names of the facts to take, None for all; ``seed`` draws some.

    None is begun for which the processor time until ``until`` may not do; nothing is broken off, for autograd's engine
    does not survive an error that comes from outside.
    """

    until = math.inf

    def __init__(self, call: Call, tree: Path, lane: str, wanted: set[str] | None = None, seed: int = 0) -> None:
        self.call, self.tree, self.lane, self.wanted, self.seed = call, tree, lane, wanted, seed
        self.given = Given(call.target.object, call.args, call.named)
        self.facts: dict[str, Any] = {}
        self.changes = set[str]()  # paths of arguments that it changes in place
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
        """The fact, where it is wanted and can be told; of one that another tree told, that this one cannot."""
        if self.wanted is None or name in self.wanted:
            if time.process_time() + DEAREST * self.cost > self.until:
                return
            try:
                told = ask()
            except Exception as error:
                told = None if self.wanted is None else f"{OTHERWISE}: {type(error).__name__}"
            if told is None and self.wanted is not None:
                told = f"{OTHERWISE}: it cannot be told"
            if told is not None:
                self.facts[name] = told

    def make(self, given: Given, twice: bool = False, between: Callable[[], object] | None = None) -> Ended:
        """Call, and go backward where the value wants to. ``twice``: backward again, whose gradients are returned.

        ``between``: is called after forward.
        """
        _seeded()
        function, heard = self.call.target.on(given.owner), Heard()
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
        made, wanted = _differentiable(value), _leaves(given)
        if not made or not wanted or not torch.is_grad_enabled():
            return {}
        weights = [_weights(one) for one in made]
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

    def modes(self) -> None:
        """Ways that change no input."""
        given = self.given
        self.take("a second time", self._second)
        self.take("under no_grad", lambda: self._within(torch.no_grad()))
        self.take("under inference_mode", lambda: self._within(torch.inference_mode()))
        self.take("under autocast", self._autocast)
        self.take("under another default dtype", self._default_dtype)
        self.take("in a thread", self._threaded)
        self.take("results kept when it is called again", self._results_kept)
        self.take("in the midst of another thread's call", self._interrupted)
        self.take("collectives", self._collectives)
        self.take("by names", self._by_names)
        self.take("in order", self._in_order)
        self.take("with iterators for lists", self._iterated)
        if given.owner is not None:
            self.take("of a deep copy", lambda: self.like(self.make(given.copy().copy())))
            self.take("of a pickled copy", self._pickled)
        if isinstance(given.owner, nn.Module):
            self.take("with eval() and train()", lambda: self.like(self.make(_toggled(given.copy()))))
            self.take(MOVED, lambda: self._after_to(lambda one: one.device.type == "meta"))
            self.take(LEFT_BEHIND, lambda: self._after_to(lambda one: one.device.type != "meta"))
        if isinstance(given.owner if given.owner is not None else self.base.value, nn.Module):
            self.take("deepcopy of the module", lambda: self._taken_by(copy.deepcopy))
            self.take("pickle of the module", lambda: self._taken_by(pickle.dumps))
            for name, cast in CASTS.items():
                self.take(f"dtypes after {name}", partial(self._cast, cast))
        self.take("backward twice", lambda: self.like(self.make(given.copy(), twice=True)))
        self.take("differentiated twice", self._differentiated_twice)
        self.take("unnoticed when changed before backward", self._unnoticed)
        self.take("gradients", self._gradients)
        self.take("host waits", self._waits)
        self.take("host waits under no_grad", lambda: self._waits(torch.no_grad()))
        self.take("tensors alive after backward", self._alive)
        self.take("says again", self._says)

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

    def _default_dtype(self) -> str:
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            ended = self.make(self.given.copy())
        finally:
            torch.set_default_dtype(usual)
        return f"{self._near(ended, None)}; {ended.kind}"

    def _threaded(self) -> str:
        """In a thread that has torch's own defaults."""
        made, given = list[Ended](), self.given.copy()

        def work() -> None:
            _seeded()
            with self._ones():
                made.append(self._alone(given))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(THREAD_S)
        return self.like(made[0]) if made else f"{OTHERWISE}: it does not end"

    def _other(self) -> Given:
        """Arguments of other values."""
        return self._changed(lambda t: _like(t, t.detach() * 0.5) if t.is_floating_point() else t)

    def _results_kept(self) -> str | None:
        """Whether a result stays what it is while the same object is called with other values."""
        given, other = self.given.copy(), self._other()
        first = self.make(given)
        if first.raised:
            return None
        before = values.digests(first.value)
        self.make(Given(given.owner, other.args, other.named))
        return AS if values.digests(first.value) == before else OTHERWISE

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

    def _alone(self, given: Given) -> Ended:
        """As ``make``, with nothing of torch's or Python's that other threads share set anew."""
        try:
            value = self.call.target.on(given.owner)(*given.args, **given.named)
            return Ended(value, "", self._backward(value, given, False), self._left_in(given))
        except Exception as error:
            return Ended(raised=type(error).__name__)

    def _collectives(self) -> list[str] | None:
        with Collectives() as seen:
            ended = self.make(self.given.copy())
        return None if ended.raised else sorted(seen.called)

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
        return "; ".join(f"{name} {_short(one.dtype)} {one.device.type}" for name, one in held.items())

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
        """Whether gradients have gradients, where a backward that upstream wrote is differentiated by autograd."""
        given = self._wanting()
        _seeded()
        made = _differentiable(self.call.target.on(given.owner)(*given.args, **given.named))
        if self.wanted is None and not any(map(_own_backward, made)):
            return None
        wanted = list(_leaves(given).values())
        found = torch.autograd.grad(made, wanted, [*map(_weights, made)], create_graph=True, allow_unused=True)
        again = [one for one in found if one is not None and one.requires_grad]
        if again:
            torch.autograd.backward(again, [*map(_weights, again)])  # unlike grad it comes by every function
        return AS if again or self.wanted is not None else None  # made by forward already, they have none

    def _unnoticed(self) -> list[str] | None:
        """Inputs that may be changed between forward and backward, so that gradients are wrong and nobody is told."""
        if not self.base.grads:
            return None
        inputs = [path for path, one in self.given.everything.items() if one.is_floating_point() and one.numel()]
        return [path for path in inputs[:CHANGED] if self._differs_when_changed(path)]

    def _differs_when_changed(self, path: str) -> bool:
        given = self.given.copy()
        ended = self.make(given, between=lambda: _changed_in_place(given.everything[path]))
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
        """Tensors that Python still knows, results and arguments left out, while the results are held."""
        given = self._wanting()
        with Made() as made:
            ended = self.make(given)
        if ended.raised or not ended.grads:
            return None
        held = (given.everything, values.tensors(ended.value), ended.grads)
        alive: int = made.alive([one for group in held for one in group.values()])
        return alive

    def _says(self) -> dict[str, int]:
        """What is said when the call has been made before."""
        given = self.given.copy()
        self.make(given)
        more = self.given.copy()
        return dict(self.make(Given(given.owner, more.args, more.named)).said)

    # inputs ---------------------------------------------------------------------------------------------------------

    def inputs(self) -> None:
        """Other kinds of inputs, where the call takes those that it has."""
        if self.base.raised or not self.given.tensors:
            return
        for kind in ("strided", "of a subclass", "as parameters"):
            name = f"with {kind} inputs" if kind == "strided" else f"with inputs {kind}"
            self.take(name, partial(self._of_kind, KINDS[kind]))
        for dtype in FLOATS:
            self.take(f"in {_short(dtype)}", partial(self._in, dtype, FLOATS, LOW))
        for dtype in INTS:
            self.take(f"with integers in {_short(dtype)}", partial(self._in, dtype, INTS, None))
        self.take("on meta", lambda: self._meta(lambda _: False))
        if any(map(_bounds, self.given.tensors.values())):
            self.take("on meta, bounds on the host", lambda: self._meta(_bounds))
        self.take("of zeros", lambda: self._filled(lambda t: torch.zeros_like(t) if t.is_floating_point() else t))
        for word in (False, True):
            self.take(f"all {word}", partial(self._filled, partial(_bools, word)))
        self.take("with integers doubled", self._doubled)
        for length in self._lengths():
            self._resized(length)

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
            if top.bits < 32 and any(map(_bounds, mine)):  # nobody packs sequences by these
                return None
        elif isinstance(given.owner, nn.Module):
            given.owner.to(dtype)
        ended = self.make(given.mapped(lambda v: _cast(v, dtype, family) if isinstance(v, Tensor) else v))
        return f"{self._near(ended, near)}; {ended.kind}"

    def _near(self, ended: Ended, near: float | None) -> str:
        if ended.raised:
            return "raises"
        mine, other = values.tensors(self.base.value), values.tensors(ended.value)
        if mine.keys() != other.keys() or any(mine[path].shape != other[path].shape for path in mine):
            return OTHERWISE
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
        given = given.mapped(lambda v: _like(v, fill(v)) if isinstance(v, Tensor) else v)
        if values.digests(given.tensors) == before:
            return None
        ended = self.make(given)
        if ended.raised:
            return f"raises {ended.raised}"
        return f"{'' if values.finite([ended.value, ended.grads]) else 'not '}finite; {ended.kind}"

    def _doubled(self) -> str | None:
        """Whether indices and bounds that point beyond are refused."""
        if not any(t.dtype in INTS and t.numel() for t in self.given.tensors.values()):
            return None
        ended = self.make(self._changed(lambda t: t * 2 + 1 if t.dtype in INTS else t))
        return f"raises {ended.raised}" if ended.raised else "taken"

    # several of these at once ---------------------------------------------------------------------------------------

    def drawn(self) -> None:
        """Kinds, dtypes and modes of tensors and forms of the call, together as nobody foresees them."""
        if self.base.raised or not self.given.tensors:
            return
        forms = {"as given": self.given.copy, "by names": self._named, "in order": self._ordered, "short": self._short}
        draw = random.Random(f"{self.seed} {self.call.key}")
        every = list(itertools.product(KINDS, MODES))
        for kind, mode in draw.sample(every, len(every)):
            dtype, form, wants = draw.choice((None, None, *FLOATS)), draw.choice(list(forms)), draw.choice(list(WANTS))
            said = f"{kind}, {_short(dtype) if dtype else 'dtypes kept'}, {mode}, {form}, {wants}"
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
            made = _cast(value, dtype, FLOATS) if dtype else value
            if wants is not None and made.is_floating_point():
                made = _like(made, made).requires_grad_(wants)
            return KINDS[kind](made)

        with MODES[mode]():
            ended = self.make(given.mapped(change))
        kind = ended.kind.replace(f"{Subclass.__name__} ", "")  # what is made anew need not be of the inputs' class
        return f"{self._near(ended, LOW if dtype else None)}; {kind}"

    # sizes ----------------------------------------------------------------------------------------------------------

    def _lengths(self) -> list[int]:
        """Lengths that most dimensions of the arguments have, the longest first among equals."""
        found = Counter(n for t in self.given.tensors.values() for n in t.shape if n > 1 and not _bounds(t))
        return sorted(found, key=lambda n: (-n * (n in self._numbers()), -found[n], -n))[:SIZES]

    def _numbers(self) -> set[int]:
        return {int(t.max()) for t in self.given.tensors.values() if t.dtype in INTS and t.dim() == 1 and t.numel() > 1}

    def _sized(self, length: int, to: int) -> Given:
        """Every dimension, number and row of bounds of this length made another length."""

        def change(value: Any) -> Any:
            if isinstance(value, int):
                return to if value == length else value
            made = value.detach()
            if _bounds(value):
                if int(value[-1]) != length:
                    return made
                return (made * to // length if to > length else made.clamp(max=to)).to(value.dtype)
            for dim, n in enumerate(value.shape):
                if n == length:
                    made = made.index_select(dim, torch.arange(to, device=value.device) % n)
            if value.dtype in INTS and to < length:  # what counts or points within the length does so still
                made = torch.where((made >= to) & (made < length), made % max(to, 1), made)
                made = torch.where(made == length, to, made).to(value.dtype)
            return _like(value, made)

        return self.given.copy().mapped(change)

    def _resized(self, length: int) -> None:
        """None, one, twice and four times as many; what that costs; what many sizes leave behind."""
        for to in (0, 1, 2 * length):
            self.take(f"{length} made {to}", partial(self._kind_at, length, to))
        more = f"with {4 * length} for {length}"
        one, four = (functools.cache(partial(self._cost, length, to)) for to in (length, 4 * length))
        self.take(f"largest tensor with {length}", lambda: one()[0])
        self.take(f"peak with {length}", lambda: one()[1])
        self.take(f"largest tensor {more}", lambda: four()[0])
        self.take(f"peak {more}", lambda: four()[1])
        self.take(f"host waits {more}", lambda: self._waits_of(self._sized(length, 4 * length)))
        self.take(f"tensors left by more sizes than {length}", lambda: self._left(length))

    def _kind_at(self, length: int, to: int) -> str:
        ended = self.make(self._sized(length, to))
        return "raises" if ended.raised else values.kind(ended.value).replace(" grad", "")

    def _cost(self, length: int, to: int) -> tuple[int, int] | tuple[None, None]:
        """Elements of the largest tensor, and at the peak; None of both where the call does not end."""
        given, seen = self._sized(length, to) if to != length else self.given.copy(), Cost()
        with seen:
            ended = self.make(given)
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
        alive: int = made.alive([])
        return alive if able else None


def _differentiable(value: Any) -> list[Tensor]:
    return [one for one in values.tensors(value).values() if one.requires_grad and one.grad_fn is not None]


def _leaves(given: Given) -> dict[str, Tensor]:
    return {path: one for path, one in given.everything.items() if one.requires_grad and one.is_leaf}


def _own_backward(tensor: Tensor) -> bool:
    """Whether a function that somebody wrote made it, or something that it comes from."""
    seen, todo = set[Any](), [tensor.grad_fn]
    while todo and len(seen) < NODES:
        node = todo.pop()
        if node is not None and node not in seen:
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return True
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return False


def _changed_in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


def _weights(tensor: Tensor) -> Tensor:
    """A gradient that is not the same everywhere."""
    made: Tensor = 1 + torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape) % 7 / 8
    return made


def _bounds(tensor: Tensor) -> bool:
    """Whether it holds the bounds of packed sequences: whole numbers from 0 on that do not fall."""
    if tensor.dtype not in INTS or tensor.dim() != 1 or tensor.numel() < 2 or int(tensor[0]) != 0:
        return False
    return bool((tensor.diff() >= 0).all())


def _toggled(given: Given) -> Given:
    was = given.owner.training
    given.owner.eval()
    given.owner.train(was)
    return given


def _strided(tensor: Tensor) -> Tensor:
    """The same values with gaps between them."""
    if not tensor.dim() or not tensor.numel():
        return tensor
    wide = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    wide[..., ::2] = tensor.detach()
    return wide[..., ::2].requires_grad_(tensor.requires_grad)


def _part(tensor: Tensor) -> Tensor:
    """The same values somewhere inside a larger tensor's memory."""
    if not tensor.dim() or not tensor.numel():
        return tensor
    wide = torch.cat([tensor.detach().new_ones(1, *tensor.shape[1:]), tensor.detach()])
    return wide[1:].requires_grad_(tensor.requires_grad)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda t: t,
    "strided": _strided,
    "of a subclass": lambda t: t.as_subclass(Subclass) if type(t) is Tensor else t,
    "as parameters": lambda t: nn.Parameter(t, t.requires_grad) if type(t) is Tensor else t,
    "inside another's memory": _part,
}
WANTS = {"wanting gradients as they do": None, "all wanting gradients": True, "none wanting gradients": False}
MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "in no mode": contextlib.nullcontext,
    "under no_grad": torch.no_grad,
    "under inference_mode": torch.inference_mode,
}


CASTS: dict[str, Callable[[nn.Module], object]] = {
    "half()": lambda module: module.half(),
    "double()": lambda module: module.double(),
    "to(meta, bfloat16)": lambda module: module.to("meta", torch.bfloat16),
}


def _cast(tensor: Tensor, dtype: torch.dtype, family: tuple[torch.dtype, ...]) -> Tensor:
    return _like(tensor, tensor.detach().to(dtype)) if tensor.dtype in family else tensor


def _like(tensor: Tensor, made: Tensor) -> Tensor:
    """``made``, a leaf that wants a gradient and is a parameter as ``tensor`` is."""
    made = made.detach()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad and made.is_floating_point())


def _bools(word: bool, tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, word) if tensor.dtype is torch.bool else tensor


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
