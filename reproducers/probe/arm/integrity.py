"""Whether the code under test has changed the probe that measures it, in the process that they share.

A snapshot before upstream is imported holds the probe's modules, the reproducer's functions and the builtins that
measuring uses; at the end each name must still be the same object with the same code. Standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from reproducers.probe.codehash import code_sha256, file_functions
from reproducers.probe.watch import Watch

PROBE = "reproducers.probe"
USED = ("abs", "all", "any", "bool", "float", "int", "isinstance", "len", "max", "min", "print", "sorted", "str", "sum")
WRAPPER = contextlib.contextmanager(iter).__code__  # type: ignore[attr-defined]
Seen = tuple[object, CodeType | None, tuple[object, ...]]


class Integrity:
    """The snapshot. ``probe`` is the arm's."""

    def __init__(self, probe: object) -> None:
        self.probe = probe
        self.before: dict[str, Seen] = {}
        self.owners = _owners()
        for owner, names in self.owners.items():
            self.before |= {f"{owner}.{name}": _seen(value) for name, value in names.items()}
        self.modules = set(_probe_modules())

    def changed(self, watch: Watch | None, *, rank: bool = False) -> list[str]:
        """The names that are not as they were, or not as their file has them. A rank's probe collects its checks."""
        names, now = set[str](), _owners()
        for owner, held in now.items():
            for name, value in held.items():
                before = self.before.get(f"{owner}.{name}")
                new = before is None and owner in self.owners and self._shadows(owner, name, value)
                if new or (before is not None and not _same(_seen(value), before)):
                    names.add(f"{owner}.{name}")
        names |= self.before.keys() - {f"{owner}.{name}" for owner, held in now.items() for name in held}
        bound = {name for name in vars(self.probe) if callable(getattr(type(self.probe), name, None))}
        names |= {f"probe.{name}" for name in bound - ({"_add"} if rank else set())}
        for module in _probe_modules().keys() - self.modules:
            names.update(_unlike_file(module, sys.modules[module]))
        if watch is not None and not watch.ours():
            names.add("sys.settrace or sys.monitoring")
        return sorted(names)

    def _shadows(self, owner: str, name: str, value: object) -> bool:
        """Whether a new name can change what the code of its owner does; a package gets its modules as names."""
        if owner == "__main__":
            return hasattr(builtins, name)
        return owner not in self.modules or not (isinstance(value, ModuleType) or name == "__warningregistry__")


def _probe_modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name == PROBE or name.startswith(f"{PROBE}.")}


def _owners() -> dict[str, dict[str, Any]]:
    """{owner: {name: value}} of the probe's modules and their classes, the reproducer's functions and builtins."""
    owners: dict[str, dict[str, Any]] = {"builtins": {name: getattr(builtins, name, None) for name in USED}}
    for name, module in _probe_modules().items():
        owners[name] = dict(vars(module))
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == name:
                owners[f"{name}.{value.__qualname__}"] = dict(vars(value))
    main = vars(sys.modules["__main__"])
    owners["__main__"] = {name: value for name, value in main.items() if isinstance(value, FunctionType)}
    return owners


def _seen(value: Any) -> Seen:
    """A value, its code, and what a wrapper calls: its cells with their code."""
    function = getattr(value, "__func__", value)
    closure = function.__closure__ if isinstance(function, FunctionType) else None
    cells = [cell.cell_contents for cell in closure or ()]
    held = [part for content in cells for part in (content, getattr(content, "__code__", None))]
    return value, getattr(function, "__code__", None), tuple(held)


def _same(now: Seen, before: Seen) -> bool:
    same = now[0] is before[0] and now[1] is before[1] and len(now[2]) == len(before[2])
    return same and all(new is old for new, old in zip(now[2], before[2], strict=True))


def _unlike_file(name: str, module: ModuleType) -> list[str]:
    """The functions of a module of the probe, imported late, that its file does not have."""
    path = Path(__file__).resolve().parents[3].joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        return [name]
    known = {sha for hashes in file_functions(path).values() for sha in hashes}
    return [
        f"{name}.{value.__qualname__}"
        for value in vars(module).values()
        if isinstance(value, FunctionType) and value.__module__ == name and code_sha256(_code(value)) not in known
    ]


def _code(function: FunctionType) -> CodeType:
    """The function's own code, also where contextlib has wrapped it."""
    wrapped = getattr(function, "__wrapped__", None)
    inner = wrapped if function.__code__ is WRAPPER and isinstance(wrapped, FunctionType) else function
    return inner.__code__
