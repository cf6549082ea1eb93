"""Proof of execution: the watched lines that ran, and the hash of each watched function as this process ran it.

Python lines are seen with ``sys.monitoring`` (3.12+) or ``sys.settrace`` (3.11). Triton and TileLang kernels are
compiled from source text instead, so for those the text handed to the compiler is recorded. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from reproducers.probe.codehash import code_sha256, file_functions, headers, module_hashes, nested

Ranges = dict[str, list[list[int]]]
_TOOL = 4  # a sys.monitoring tool id that neither debuggers, coverage nor profilers claim


class Watch:
    """Record executions of ``ranges`` ({path relative to ``tree``: [[first, last], ...]}, 1-based, inclusive).

    ``at(place)`` says where the program is; what runs or is compiled from then on is also kept by place.
    """

    def __init__(self, tree: Path, ranges: Ranges) -> None:
        self.tree = tree.absolute()  # as imports name files, which may go by a link
        self.ranges = {str(self.tree / rel): spans for rel, spans in ranges.items()}
        self.headers = {name: headers(Path(name)) for name in self.ranges}
        self.at_import = {name: {n for lines in spans.values() for n in lines} for name, spans in self.headers.items()}
        self.hits: dict[str, set[int]] = {name: set() for name in self.ranges}
        self.pending = {(name, first, last) for name, spans in self.ranges.items() for first, last in spans}
        self.functions: dict[tuple[str, str], set[str]] = {}
        self.modules = {name: module_hashes(Path(name)) for name in self.ranges}
        self.origins: dict[CodeType, CodeType] = {}  # {rewritten code that runs: its original}
        self.sources: dict[tuple[str, int], dict[str, Any]] = {}
        self.place: str | None = None
        self.places: dict[str, dict[str, set[int]]] = {}  # place: {file: lines}, first lines of compiled sources too
        self._known: dict[tuple[int, int], CodeType] = {}  # hit at this place; kept alive, so that ids stay unique
        self._followed: dict[int, CodeType] = {}  # code that sys.monitoring follows line by line
        self._watching = False
        self._replaced: dict[tuple[Any, str], Any] = {}

    def at(self, place: str) -> None:
        """Call first right after ``start``, then at every change, in the thread that goes on there.

        On 3.11 a thread that Python did not start, such as the autograd engine's, is followed from its first call.
        """
        if not self._watching or place == self.place:
            return
        first, self.place = self.place is None, place
        self._known.clear()
        if sys.version_info >= (3, 12):
            if first:  # until now each line was told only once
                sys.monitoring.restart_events()
        elif sys.gettrace() is None:
            sys.settrace(self._on_call)

    def start(self) -> None:
        if not self.ranges:
            return
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(_TOOL, "patchlane")
            monitoring.register_callback(_TOOL, monitoring.events.LINE, self._on_line)
            monitoring.register_callback(_TOOL, monitoring.events.PY_START, self._on_start)
        self._hook_compilers()
        self.resume()

    def resume(self) -> None:
        """Ask for the start of every function; only a watched file's functions are then followed line by line."""
        if not self.ranges:
            return
        self._watching = True
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, sys.monitoring.events.PY_START)
            for code in self._followed.values():
                sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
        else:
            threading.settrace(self._on_call)
            sys.settrace(self._on_call)

    def pause(self) -> None:
        """See nothing until ``resume``."""
        if not self.ranges:
            return
        self._watching = False
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
            for code in self._followed.values():
                sys.monitoring.set_local_events(_TOOL, code, 0)
        else:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See nothing inside the block: timed code must not be watched."""
        self.pause()
        try:
            yield
        finally:
            if self.pending or self.place or sys.version_info >= (3, 12):
                self.resume()

    def ours(self) -> bool:
        """Whether nothing took the watch's place; True where it sees nothing by its own will."""
        if not self._watching:
            return True
        if sys.version_info >= (3, 12):
            return sys.monitoring.get_tool(_TOOL) == "patchlane"
        return sys.gettrace() == self._on_call

    def stop(self) -> None:
        if not self.ranges:
            return
        self.pause()
        if sys.version_info >= (3, 12):
            for event in (sys.monitoring.events.LINE, sys.monitoring.events.PY_START):
                sys.monitoring.register_callback(_TOOL, event, None)
            sys.monitoring.free_tool_id(_TOOL)
        for (owner, name), original in self._replaced.items():
            setattr(owner, name, original)
        self._replaced.clear()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(original)`` in a name's place, once, until the watch stops."""
        if owner is not None and (owner, name) not in self._replaced:
            self._replaced[owner, name] = original = getattr(owner, name)
            setattr(owner, name, make(original))

    def _seen(self, code: CodeType, line: int) -> None:
        """Record a hit; on 3.11, where tracing slows everything, stop once every range has one, unless by place."""
        if (id(code), line) in self._known:
            return
        self._known[id(code), line] = code
        name, first = code.co_filename, code.co_firstlineno
        code = self.origins.get(code, code)
        function = code.co_flags & inspect.CO_NEWLOCALS and code.co_qualname != "<module>"
        if function:  # its call runs its whole header
            lines = set(self.headers[name].get(line, ())) if line == first else {line}
        elif code_sha256(code) in self.modules[name]:  # not code that another file compiled under this one's name
            lines = {line} - self.at_import[name]
        else:
            lines = set()
        lines = {n for n in lines if any(first <= n <= last for first, last in self.ranges[name])}
        if lines:
            self.hits[name] |= lines
            if self.place:
                self.places.setdefault(self.place, {}).setdefault(name, set()).update(lines)
            self.functions.setdefault((name, code.co_qualname), set()).add(code_sha256(code))
            self._answered(name, lines)

    def _answered(self, name: str, lines: Iterable[int]) -> None:
        """These lines ran or were compiled."""
        self.pending = {(n, a, b) for n, a, b in self.pending if n != name or not any(a <= x <= b for x in lines)}
        if not self.pending and not self.place and sys.version_info < (3, 12):
            self.pause()

    def _on_start(self, code: CodeType, offset: int) -> object:
        if sys.version_info >= (3, 12) and code.co_filename in self.ranges:
            self._followed[id(code)] = code
            sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
        return self._on_line(code, code.co_firstlineno)

    def _on_line(self, code: CodeType, line: int) -> object:
        """One hit of a line is enough, except for places: there each hit in a watched file is told."""
        if code.co_filename in self.ranges:
            self._seen(code, line)
            if self.place:
                return None
        return sys.monitoring.DISABLE if sys.version_info >= (3, 12) else None

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._watching:  # stopped by another thread
            sys.settrace(None)
            return None
        if frame.f_code.co_filename not in self.ranges:
            return None
        self._seen(frame.f_code, frame.f_lineno)
        return self._on_trace

    def _on_trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self._seen(frame.f_code, frame.f_lineno)
        return self._on_trace

    def _hook_compilers(self) -> None:
        """TileLang and TVM parse a kernel's text through ``inspect`` at trace time; Triton names it at compile time."""

        def make(original: Any) -> Any:
            def getsourcelines(target: Any) -> Any:
                lines, first = original(target)
                code = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
                if code is not None and code.co_filename in self.ranges and _called_from("tilelang", "tvm"):
                    self._compiled(code.co_filename, first, "".join(lines), "tilelang")
                return lines, first

            return getsourcelines

        self._replace(inspect, "getsourcelines", make)

    def hook_triton(self) -> None:
        """Call once triton is imported: every kernel it compiles from a watched file is recorded with its text."""
        if not self.ranges:
            return
        self._hook_interpreter()
        self._hook_tilelang()

        def make(original: Any) -> Any:
            def init(source: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
                original(source, fn, *args, **kwargs)
                self._triton_function(fn, set())

            return init

        module = sys.modules.get("triton.compiler.compiler")
        self._replace(getattr(module, "ASTSource", None), "__init__", make)

    def _hook_interpreter(self) -> None:
        """Triton's interpreter runs a rewritten copy of a kernel, at its lines: know it by the original's hash."""

        def make(original: Any) -> Any:
            def rewrite_ast(rewriter: Any) -> Any:
                rewritten = original(rewriter)
                self.origins[rewritten.__code__] = rewriter.fn.__code__
                return rewritten

            return rewrite_ast

        module = sys.modules.get("triton.runtime.interpreter")
        self._replace(getattr(module, "FunctionRewriter", None), "rewrite_ast", make)

    def _hook_tilelang(self) -> None:
        """TileLang traces a kernel by running a rewritten copy of it, at its lines: as for Triton's interpreter."""

        def make(original: Any) -> Any:
            def mutate(function: Any) -> Any:
                made = original(function)
                self.origins |= dict.fromkeys(nested(made.gen.__code__), function.__code__)
                return made

            return mutate

        self._replace(sys.modules.get("tilelang.language.eager.builder"), "mutate", make)

    def _triton_function(self, fn: Any, done: set[int]) -> None:
        if id(fn) in done or not hasattr(fn, "src"):
            return
        done.add(id(fn))
        code = fn.fn.__code__
        if code.co_filename in self.ranges:
            # the compiler gets the text without its decorators, which the first line counts from
            decorators = len(inspect.getsourcelines(fn.fn)[0]) - len(fn.src.splitlines())
            self._compiled(code.co_filename, fn.starting_line_number, fn.src, "triton", decorators)
        for name in code.co_names:
            self._triton_function(fn.fn.__globals__.get(name), done)

    def seen(self) -> Any:
        """All records so far, for ``merge`` in another process's watch."""
        return self.hits, self.functions, self.sources

    def merge(self, records: Any) -> None:
        """Add the ``seen()`` of a forked rank's watch."""
        hits, functions, sources = records
        for name, lines in hits.items():
            self.hits[name] |= lines
        for key, shas in functions.items():
            self.functions.setdefault(key, set()).update(shas)
        self.sources |= sources

    def _compiled(self, name: str, first: int, text: str, compiler: str, decorators: int = 0) -> None:
        last = first + decorators + len(text.splitlines()) - 1
        sha = hashlib.sha256(text.encode()).hexdigest()
        self.sources[name, first] = {"first": first, "last": last, "sha256": sha, "compiler": compiler}
        self._answered(name, range(first, last + 1))
        if self.place:
            self.places.setdefault(self.place, {}).setdefault(name, set()).add(first)

    def report(self) -> dict[str, Any]:
        """{relative path: hit lines, executed functions with the hash on disk beside it, compiled sources}."""
        result: dict[str, Any] = {}
        for name in self.ranges:
            path = Path(name)
            on_disk = file_functions(path) if path.suffix == ".py" and path.exists() else {}
            result[path.relative_to(self.tree).as_posix()] = {
                "lines": sorted(self.hits[name]),
                "functions": {
                    qual: {"process": sorted(shas), "tree": sorted(on_disk.get(qual, []))}
                    for (file, qual), shas in sorted(self.functions.items())
                    if file == name
                },
                "compiled": [entry for (file, _), entry in sorted(self.sources.items()) if file == name],
            }
        return result


def _called_from(*packages: str) -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in packages:
            return True
        frame = frame.f_back
    return False
