"""The outermost calls of upstream that run code of touched files, and these files' imports, seen as they begin and end.

A trace function sees each call whose code lies in the tree while no other such call is under way in its thread. Of each
callable the first calls of different kinds are kept: with copies of their arguments, so that they can be made again.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import logging
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from reproducers.probe.arm.census import CHANGED, MARKS, SAYS, state, values

KINDS, CALLABLES = 4, 40  # calls of different kinds that are kept of a callable; callables
TOUCHED = 2  # the place of a file that the patch changes; 1: of another one of the tree
LARGE = 1 << 27  # bytes of arguments of which no copies are kept
SKIPPED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}
MEMBER = re.compile(r"\['self'\]\.\w+")  # of a path that values.photograph gives
RANK = re.compile(r"^rank \d+ of \d+: ")  # begins the keys of calls that a rank has made
BACKWARD = "backward"  # of an autograd function: autograd's context cannot be made again


@dataclass
class Call:
    """One call that is kept. ``target``: what makes it again with ``args`` and ``named``, None where nothing can.

    ``facts``: {name: value} of what it did.
    """

    name: str
    kind: str
    target: Any = None
    args: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.name}({self.kind})"

    @property
    def backward(self) -> bool:
        """Whether it is an autograd function's, whose context cannot be made again; forward goes through it."""
        return self.name.rpartition(".")[2] == BACKWARD


@dataclass
class Open:
    """A kept call that is under way."""

    call: Call
    given: dict[str, Any]
    photograph: dict[str, Any]
    state: dict[str, Any]
    heard: Heard
    left: contextlib.ExitStack
    sizes: str


class Heard(state.Listener):
    """Records of the log and warnings while it listens."""

    def __init__(self) -> None:
        super().__init__(level=logging.NOTSET)
        self.said = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said[f"log record of level {record.levelname.lower()}"] += 1

    @contextlib.contextmanager
    def listening(self) -> Iterator[Heard]:
        """Every logger that hands its records on, and Python's warnings."""
        shown = warnings.showwarning

        def warned(message: Any, category: Any, *rest: Any, **named: Any) -> None:
            self.said[f"warning {category.__name__}"] += 1
            shown(message, category, *rest, **named)

        logging.root.addHandler(self)
        warnings.showwarning = warned
        try:
            yield self
        finally:
            warnings.showwarning = shown
            logging.root.removeHandler(self)


class _Import:
    """The state of the process as a file's import begins, and what is said until it has ended."""

    def __init__(self) -> None:
        self.before, self.after = state.state(), dict[str, Any]()
        self.heard, self.left = Heard(), contextlib.ExitStack()
        self.left.enter_context(self.heard.listening())

    def ended(self) -> tuple[list[str], Counter[str]]:
        """What it left changed, and what it said."""
        self.left.close()
        self.after = state.state()
        return state.changed(self.before, self.after), self.heard.said

    def forgive(self, other: _Import) -> None:
        """As if what another one did had been so before."""
        self.before |= {name: other.after[name] for name in state.changed(other.before, other.after)}
        self.heard.said -= other.heard.said


class Calls:
    """``kept``: the calls, by key; ``imports``: {touched file: what its imports leave changed and say}.

    ``known``: the keys of another tree's calls, which alone are kept then, for there is nothing to set others beside.
    """

    def __init__(self, tree: Path, files: Iterable[str], known: Iterable[str] | None = None) -> None:
        self.known = None if known is None else {RANK.sub("", key) for key in known}
        self.root = f"{tree.resolve()}/"
        self.files = {str((tree / file).resolve()): file for file in files}
        self.kept: dict[str, Call] = {}
        self.imports: dict[str, dict[str, Any]] = {}
        self._inside: dict[str, int] = {}
        self._here = threading.local()

    def start(self) -> None:
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        inside = self._inside.get(code.co_filename)
        if inside is None:
            inside = self._inside[code.co_filename] = self._place(code.co_filename)
        if code.co_name == "<module>" and inside != 1:
            with contextlib.suppress(Exception):  # where torch itself is half imported nothing can be told
                return self._on_import(frame) if inside else self._on_other(frame)
        return self._on_code(frame, inside) if inside else None

    def _on_code(self, frame: FrameType, inside: int) -> Any:
        code = frame.f_code
        if getattr(self._here, "busy", False) or code.co_flags & SKIPPED:
            self._here.touched = getattr(self._here, "touched", False) or inside == TOUCHED
            return None
        self._here.busy, self._here.open, self._here.touched = True, None, inside == TOUCHED
        frame.f_trace_lines = False
        if code.co_flags & inspect.CO_NEWLOCALS and not code.co_name.startswith("<"):
            with contextlib.suppress(Exception):
                self._here.open = self._begin(frame)
        return self._on_end

    def _place(self, filename: str) -> int:
        path = str(Path(filename).resolve())
        return TOUCHED if path in self.files else int(path.startswith(self.root))

    def _on_import(self, frame: FrameType) -> Any:
        """As any code; beside that what it leaves changed, with other files of the tree that it imports in turn."""
        known = self.imports.setdefault(self.files[str(Path(frame.f_code.co_filename).resolve())], {})
        opened, ended = _Import(), self._on_code(frame, TOUCHED)
        open_ones = self._importing()
        open_ones.append(opened)
        frame.f_trace_lines = False

        def on_end(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                open_ones.remove(opened)
                with contextlib.suppress(Exception):
                    changed, said = opened.ended()
                    known[CHANGED] = sorted({*known.get(CHANGED, ()), *changed})
                    known[SAYS] = dict(Counter(known.get(SAYS, {})) | said)
            if ended is not None:
                ended(frame, event, arg)
            return on_end

        return on_end

    def _on_other(self, frame: FrameType) -> Any:
        """An import of another distribution's: what it leaves changed is none of the touched file that asks for it."""
        if not self._importing() or getattr(self._here, "other", False):
            return None
        other, frame.f_trace_lines, self._here.other = _Import(), False, True

        def on_end(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                self._here.other = False
                with contextlib.suppress(Exception):
                    other.ended()
                    for one in self._importing():
                        one.forgive(other)
            return on_end

        return on_end

    def _importing(self) -> list[_Import]:
        """The touched files whose imports are under way in this thread."""
        found: list[_Import] = vars(self._here).setdefault("importing", [])
        return found

    def _on_end(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            self._here.raised = arg[0].__name__
        elif event == "return":
            if self._here.open is not None:
                left = frame.f_code.co_code[frame.f_lasti] in RETURNS
                raised = None if left else getattr(self._here, "raised", "an error")
                with contextlib.suppress(Exception):
                    self._end(self._here.open, arg, raised, self._here.touched)
            self._here.busy = False
        return self._on_end

    def _begin(self, frame: FrameType) -> Open | None:
        names, passed = _given(frame)
        given, name, kind = _told(frame, names, passed)
        with quiet():
            call = Call(name, kind)
            kinds = Counter(one.name for one in self.kept.values())
            full = kinds[name] >= KINDS or (name not in kinds and len(kinds) >= CALLABLES)
            if call.key in self.kept or (full if self.known is None else call.key not in self.known):
                return None
            self.kept[call.key] = call
            with contextlib.suppress(Exception):
                _again(call, frame, names, passed)
            before, sizes = _photograph(call, given), _sizes(given)
        left, heard, now = contextlib.ExitStack(), Heard(), state.state()
        left.enter_context(heard.listening())
        return Open(call, given, before, now, heard, left, sizes)

    def _end(self, opened: Open, value: Any, raised: str | None, touched: bool) -> None:
        opened.left.close()
        call, facts, now = opened.call, opened.call.facts, state.state()
        if not touched:  # nothing that the patch changes has run; the next of its kind may run some
            del self.kept[call.key]
            return
        with quiet():
            facts["of"] = opened.sizes
            facts[CHANGED] = state.changed(opened.state, now)
            after = _kept_members(opened.photograph, _photograph(call, opened.given), opened.given)
            facts["changes of its arguments"] = values.changed(opened.photograph, after)
            facts[SAYS] = dict(opened.heard.said)
            facts["ends"] = f"raises {raised}" if raised else values.kind(_returned(call, value))
            if raised is None:
                facts["shares memory with"] = _shared(value, opened.given)
            if call.name.endswith(".__init__"):
                facts |= _made(opened.given.get("self"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Neither modes of torch that count operators nor autograd see what happens inside."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


def _sizes(given: dict[str, Any]) -> str:
    """The dtypes and shapes of the arguments' tensors, in order."""
    told = {name: value for name, value in given.items() if name not in ("self", "ctx")}
    return " ".join(values.form(tensor).removesuffix(" grad") for tensor in values.tensors(told).values())[:400]


def _returned(call: Call, value: Any) -> Any:
    """The value; of an autograd function's backward its gradients, for an argument that a fix adds has none."""
    if not call.backward:
        return value
    return tuple(one for one in (value if isinstance(value, tuple) else (value,)) if one is not None)


def _photograph(call: Call, given: dict[str, Any]) -> dict[str, Any]:
    """What the arguments look like; not autograd's context, on which a function keeps what is its own.

    Nor what ``__init__`` makes: which members it has, and of what names, is its own.
    """
    from torch.autograd.function import FunctionCtx

    made = "self" if call.name.endswith(".__init__") else None
    told = {name: value for name, value in given.items() if name != made and not isinstance(value, FunctionCtx)}
    return values.photograph(told)


def _kept_members(before: dict[str, Any], after: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """``after`` without what the call adds to its own object: a member that is neither parameter, buffer nor module."""
    owner = vars(given["self"]) if hasattr(given.get("self"), "__dict__") else {}
    known = {match[0] for path in before if (match := MEMBER.match(path))}
    known |= {f"['self'].{name}" for held in values.MODULE for name in owner.get(held, ())}
    return {path: held for path, held in after.items() if not (match := MEMBER.match(path)) or match[0] in known}


def _given(frame: FrameType) -> tuple[list[str], dict[str, Any]]:
    """Names of the arguments, in order, and {name: value}."""
    code, held = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = [name for name in code.co_varnames[:count] if name in held]
    return names, {name: held[name] for name in names}


def _told(frame: FrameType, names: list[str], given: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    """A call's arguments, its name and its kind; under a decorator those of the function that is decorated."""
    code, served = frame.f_code, _served(frame)
    if served is not None:
        signature, flags, rest = inspect.signature(served), code.co_flags, list(names)
        named = given[rest.pop()] if flags & inspect.CO_VARKEYWORDS else {}
        more = given[rest.pop()] if flags & inspect.CO_VARARGS else ()
        with contextlib.suppress(TypeError):  # of another form than the function's
            bound = signature.bind(*(given[name] for name in rest), *more, **named).arguments
            defaults = {name: one.default for name, one in signature.parameters.items()}
            return bound, _name(served.__code__), _kind(bound, defaults)
    return given, _name(code), _kind(given, _defaults(frame, given))


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_qualname}"


def _served(frame: FrameType) -> Any:
    """The function behind the decorator whose inner function a frame runs; None where it is no such one."""
    code, held = frame.f_code, frame.f_locals
    if "<locals>" not in code.co_qualname or not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    functions = [held.get(name) for name in code.co_freevars if hasattr(held.get(name), "__code__")]
    return _plain(functions[0]) if len(functions) == 1 else None


def _kind(given: dict[str, Any], defaults: dict[str, Any]) -> str:
    """The kinds of a call's arguments; not of those that are as by default, which another tree may not have."""
    told = {name: value for name, value in given.items() if name != "self" and not _usual(value, defaults.get(name))}
    return ", ".join(f"{name}={_word(value)}" for name, value in told.items())


def _usual(value: Any, default: Any) -> bool:
    return values.is_default(value, default) or (isinstance(value, tuple | dict) and not value)


def _defaults(frame: FrameType, given: dict[str, Any]) -> dict[str, Any]:
    """{argument: its default} of the function that a frame runs; of one that cannot be found none."""
    target, _ = _target(frame, given)
    function = getattr(type(target[0]), target[1], None) if isinstance(target, tuple) else target
    if frame.f_code.co_name == "__init__" and isinstance(function, type):
        function = function.__init__  # type: ignore[misc]
    function = _plain(function)
    if getattr(function, "__code__", None) is not frame.f_code:
        return {}
    code, last = frame.f_code, function.__defaults__ or ()
    by_place = dict(zip(code.co_varnames[: code.co_argcount][::-1], last[::-1], strict=False))
    return by_place | (function.__kwdefaults__ or {})


def _word(value: Any) -> str:
    """The kind of an argument, without sizes; a flag, a text or a dtype decides by its value what a call does."""
    import torch

    if isinstance(value, torch.Tensor):
        return values.kind(value, shapes=False)
    if isinstance(value, bool | str | torch.dtype) or value is None:
        return repr(value)[:40]
    if isinstance(value, tuple | list | dict):
        return f"{type(value).__name__}{'' if value else ' of none'}"
    return type(value).__name__


def _again(call: Call, frame: FrameType, names: list[str], given: dict[str, Any]) -> None:
    """Fill in what makes the call again."""
    code = frame.f_code
    if code.co_name == BACKWARD or values.size(given) > LARGE:
        return
    target, first = _target(frame, given)
    if target is None:
        return
    flags, plain = code.co_flags, code.co_argcount
    own = [name for name in names if name != first]
    rest = own[: plain - (1 if first else 0)]
    if flags & inspect.CO_VARKEYWORDS:
        call.named |= given[own.pop()]
    args = [given[name] for name in rest]
    if flags & inspect.CO_VARARGS:
        args += given[own.pop()]
    if first is None and args and args[0] is _bound(target):
        args = args[1:]
    call.named |= {name: given[name] for name in own if name not in rest}
    held = values.copied({"target": _bound(target), "args": args, "named": call.named})
    call.target, call.args, call.named = _Target(target, held["target"]), held["args"], held["named"]


@dataclass
class _Target:
    """A function or a class, or the name of a method and a copy of its object."""

    what: Any
    object: Any = None

    def on(self, owner: Any) -> Callable[..., Any]:
        if owner is None:
            made: Callable[..., Any] = self.what
            return made
        name: str = self.what[1]
        return owner if name == "forward" and callable(owner) else getattr(owner, name)  # type: ignore[no-any-return]


def _bound(target: Any) -> Any:
    return target[0] if isinstance(target, tuple) else None


def _target(frame: FrameType, given: dict[str, Any]) -> tuple[Any, str | None]:
    """What is to be called, and the name of the first argument that it brings itself."""
    code = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else None
    owner = given.get(first) if first else None
    cls: Any = type(owner)
    if cls.__name__.endswith("Backward") and hasattr(cls, "_forward_cls"):
        return cls._forward_cls.apply, first
    if first and code.co_name == "__init__" and _code(cls.__init__) is code:
        return cls, first
    if first == "self" and _code(getattr(cls, code.co_name, None)) is code:
        return (owner, code.co_name), first
    if first == "cls" and isinstance(owner, type):
        return getattr(owner, code.co_name, None), first
    if (served := _served(frame)) is not None:
        rows = given.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount]) if not first else ()
        owner = owner if first else next(iter(rows if isinstance(rows, tuple) else ()), None)
        if _plain(getattr(type(owner), served.__name__, None)) is served:
            return (owner, served.__name__), first
        function = served.__globals__.get(served.__qualname__)
        return (function, None) if _plain(function) is served else (None, None)
    name, *members = code.co_qualname.split(".")
    found: Any = frame.f_globals.get(name)  # not of sys.modules, whose module may be another import of the same file
    for member in members:
        found = getattr(found, member, None)
    return (found, None) if _code(found) is code else (None, None)


def _code(function: Any) -> CodeType | None:
    """The code of a function under its decorators."""
    return getattr(_plain(function), "__code__", None)


def _plain(function: Any) -> Any:
    """A function without its decorators."""
    for _ in range(10):
        if getattr(function, "__wrapped__", None) is None:
            break
        function = function.__wrapped__
    function = getattr(function, "__func__", function)
    return getattr(function, "_torchdynamo_orig_callable", function)


def _shared(value: Any, given: dict[str, Any]) -> list[str]:
    """Arguments whose memory a result has."""
    import torch

    def memory(tensor: Any) -> int:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            if tensor.device.type != "meta" and tensor.layout is torch.strided and tensor.numel():
                return int(tensor.untyped_storage().data_ptr())
        return 0

    made = {memory(tensor) for tensor in values.tensors(value).values()} - {0}
    return sorted({values.place(path) for path, tensor in values.tensors(given).items() if memory(tensor) in made})


def _marks(name: str, parameter: Any) -> Iterator[str]:
    """What Python holds of a parameter, by which optimizers and checkpoints know it."""
    for mark, held in vars(parameter).items():
        yield f"{name}.{mark} = {held}" if isinstance(held, bool | int | str | None) else f"{name}.{mark}"


def _made(made: Any) -> dict[str, Any]:
    """What a new module has: names, dtypes, shapes of its parameters and of those buffers that a checkpoint has."""
    from torch import nn

    if not isinstance(made, nn.Module):
        return {}
    with contextlib.suppress(Exception):
        saved = made.state_dict()
        return {
            "parameters": {name: values.form(one) for name, one in made.named_parameters()},
            "buffers": {name: values.form(one) for name, one in made.named_buffers() if name in saved},
            "state dict": sorted(saved),
            MARKS: sorted(mark for name, one in made.named_parameters() for mark in _marks(name, one)),
        }
    return {}
