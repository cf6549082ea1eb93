"""Proof of execution: which watched lines ran, and the hash of each watched function as it was in this process.

Python lines are seen with ``sys.monitoring`` (3.12+) or ``sys.settrace`` (3.11). Triton and TileLang kernels are
compiled from source text instead, so for those the text handed to the compiler is recorded. Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Ranges = dict[str, list[list[int]]]
_TOOL = 4  # a sys.monitoring tool id that neither debuggers, coverage nor profilers claim


def code_sha256(code: CodeType) -> str:
    """Hash of what a function does: bytecode, names and constants, nested functions included, not its location."""
    digest = hashlib.sha256(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for const in code.co_consts:
        digest.update((code_sha256(const) if isinstance(const, CodeType) else repr(_stable(const))).encode())
    return digest.hexdigest()


def _stable(const: object) -> object:
    """Set literals print in hash order, which differs by process; sort them."""
    return sorted(map(repr, const)) if isinstance(const, frozenset) else const


def file_functions(path: Path) -> dict[str, list[str]]:
    """{qualified name: code hashes} of a source file as compiled by this interpreter; a name may be defined twice."""
    found: dict[str, list[str]] = {}

    def walk(code: CodeType) -> None:
        for const in code.co_consts:
            if isinstance(const, CodeType):
                found.setdefault(const.co_qualname, []).append(code_sha256(const))
                walk(const)

    walk(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))
    return found


def headers(path: Path) -> dict[int, range]:
    """{line of ``def``: the lines up to its body} of a source file, also under the line of its first decorator.

    Importing a file runs its ``def`` lines, which says nothing of the functions' own code.
    """
    if path.suffix != ".py" or not path.exists():
        return {}
    found = {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = range(node.lineno, max(node.lineno, node.body[0].lineno - 1) + 1)
            found[min([node.lineno, *(d.lineno for d in node.decorator_list)])] = found[node.lineno] = lines
    return found


class Watch:
    """Record executions of ``ranges`` ({path relative to ``tree``: [[first, last], ...]}, 1-based, inclusive)."""

    def __init__(self, tree: Path, ranges: Ranges) -> None:
        self.tree = tree.resolve()
        self.ranges = {str(self.tree / rel): spans for rel, spans in ranges.items()}
        self.headers = {name: headers(Path(name)) for name in self.ranges}
        self.at_import = {name: {n for lines in found.values() for n in lines} for name, found in self.headers.items()}
        self.hits: dict[str, set[int]] = {name: set() for name in self.ranges}
        self.pending = {(name, first, last) for name, spans in self.ranges.items() for first, last in spans}
        self.functions: dict[tuple[str, str], set[str]] = {}
        self.origins: dict[CodeType, CodeType] = {}  # code that was rewritten to run: the code it was made from
        self.sources: dict[tuple[str, int], dict[str, Any]] = {}

    def start(self) -> None:
        if not self.ranges:
            return
        self._hook_compilers()
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(_TOOL, "patchlane")
            monitoring.register_callback(_TOOL, monitoring.events.LINE, self._on_line)
            monitoring.register_callback(_TOOL, monitoring.events.PY_START, self._on_start)
        self._resume()

    def _resume(self) -> None:
        """Ask for the start of every function; only a watched file's functions are then followed line by line."""
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, sys.monitoring.events.PY_START)
        else:
            threading.settrace(self._on_call)
            sys.settrace(self._on_call)

    def _pause(self) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
        else:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See nothing for a while: what is timed must not be watched."""
        if not self.ranges:
            yield
            return
        self._pause()
        try:
            yield
        finally:
            if self.pending or sys.version_info >= (3, 12):
                self._resume()

    def stop(self) -> None:
        if not self.ranges:
            return
        self._pause()
        if sys.version_info >= (3, 12):
            sys.monitoring.free_tool_id(_TOOL)

    def _seen(self, code: CodeType, line: int) -> None:
        """Record a hit; on 3.11, where tracing slows everything, stop once every range has one."""
        name = code.co_filename
        code = self.origins.get(code, code)
        if code.co_flags & inspect.CO_NEWLOCALS:  # a function: its call runs its whole header
            lines = set(self.headers[name].get(line, ())) if line == code.co_firstlineno else {line}
        else:
            lines = {line} - self.at_import[name]
        lines = {n for n in lines if any(first <= n <= last for first, last in self.ranges[name])}
        if lines:
            self.hits[name] |= lines
            self.functions.setdefault((name, code.co_qualname), set()).add(code_sha256(code))
            self.pending = {(n, a, b) for n, a, b in self.pending if n != name or not any(a <= x <= b for x in lines)}
            if not self.pending and sys.version_info < (3, 12):
                self._pause()

    def _on_start(self, code: CodeType, offset: int) -> object:
        if sys.version_info >= (3, 12) and code.co_filename in self.ranges:
            sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
        return self._on_line(code, code.co_firstlineno)

    def _on_line(self, code: CodeType, line: int) -> object:
        if code.co_filename in self.ranges:
            self._seen(code, line)
        return sys.monitoring.DISABLE if sys.version_info >= (3, 12) else None

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
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
        original = inspect.getsourcelines

        def getsourcelines(target: Any) -> Any:
            lines, first = original(target)
            code = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
            if code is not None and code.co_filename in self.ranges and _called_from("tilelang", "tvm"):
                self._compiled(code.co_filename, first, "".join(lines), "tilelang")
            return lines, first

        inspect.getsourcelines = getsourcelines  # type: ignore[assignment]

    def hook_triton(self) -> None:
        """Call once triton is imported: every kernel it compiles from a watched file is recorded with its text."""
        self._hook_interpreter()
        self._hook_tilelang()
        module = sys.modules.get("triton.compiler.compiler")
        if module is None or getattr(module.ASTSource, "_patchlane", False):
            return
        original = module.ASTSource.__init__

        def init(source: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
            original(source, fn, *args, **kwargs)
            self._triton_function(fn, set())

        module.ASTSource.__init__ = init
        module.ASTSource._patchlane = True

    def _hook_interpreter(self) -> None:
        """Triton's interpreter runs a rewritten copy of a kernel, at its lines: know it by the original's hash."""
        module = sys.modules.get("triton.runtime.interpreter")
        if module is None or getattr(module.FunctionRewriter, "_patchlane", False):
            return
        original = module.FunctionRewriter.rewrite_ast

        def rewrite_ast(rewriter: Any) -> Any:
            rewritten = original(rewriter)
            self.origins[rewritten.__code__] = rewriter.fn.__code__
            return rewritten

        module.FunctionRewriter.rewrite_ast = rewrite_ast
        module.FunctionRewriter._patchlane = True

    def _hook_tilelang(self) -> None:
        """TileLang traces a kernel by running a rewritten copy of it, at its lines: the same."""
        module: Any = sys.modules.get("tilelang.language.eager.builder")
        if module is None or hasattr(module.mutate, "_patchlane"):
            return
        original = module.mutate

        def mutate(function: Any) -> Any:
            made = original(function)
            self.origins |= dict.fromkeys(_nested(made.gen.__code__), function.__code__)
            return made

        mutate._patchlane = True  # type: ignore[attr-defined]
        module.mutate = mutate

    def _triton_function(self, fn: Any, done: set[int]) -> None:
        if id(fn) in done or not hasattr(fn, "src"):
            return
        done.add(id(fn))
        code = fn.fn.__code__
        if code.co_filename in self.ranges:
            self._compiled(code.co_filename, fn.starting_line_number, fn.src, "triton")
        for name in code.co_names:
            self._triton_function(fn.fn.__globals__.get(name), done)

    def seen(self) -> Any:
        """What was seen so far, to be merged into another process's watch."""
        return self.hits, self.functions, self.sources

    def merge(self, seen: Any) -> None:
        """Add what a forked rank's watch saw."""
        hits, functions, sources = seen
        for name, lines in hits.items():
            self.hits[name] |= lines
        for key, shas in functions.items():
            self.functions.setdefault(key, set()).update(shas)
        self.sources |= sources

    def _compiled(self, name: str, first: int, text: str, compiler: str) -> None:
        last = first + len(text.splitlines()) - 1
        sha = hashlib.sha256(text.encode()).hexdigest()
        self.sources[name, first] = {"first": first, "last": last, "sha256": sha, "compiler": compiler}

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


def _nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and all within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _called_from(*packages: str) -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in packages:
            return True
        frame = frame.f_back
    return False
