"""Whether the code under test has changed the probe that measures it, in the process that they share.

A snapshot before upstream is imported holds the probe's modules, the reproducer's functions and the builtins that
measuring uses; at the end each name must still be the same object with the same code. Standard library only.
"""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from reproducers.probe.codehash import code_sha256, file_functions
from reproducers.probe.watch import Watch

PROBE = "reproducers.probe"
USED = ("abs", "all", "any", "bool", "float", "int", "isinstance", "len", "max", "min", "print", "sorted", "str", "sum")
Seen = tuple[object, CodeType | None]


class Integrity:
    """The snapshot. ``probe`` is the arm's."""

    def __init__(self, probe: object) -> None:
        self.probe = probe
        self.before: dict[str, Seen] = {}
        for owner, names in _owners().items():
            self.before |= {f"{owner}.{name}": _seen(value) for name, value in names.items()}
        self.modules = set(_probe_modules())

    def changed(self, watch: Watch | None, *, rank: bool = False) -> list[str]:
        """The names that are not as they were, or not as their file has them. A rank's probe collects its checks."""
        now, names = _owners(), list[str]()
        for owner, held in now.items():
            found = {f"{owner}.{name}": _seen(value) for name, value in held.items()}
            names += [
                name for name, value in found.items() if name in self.before and not _same(value, self.before[name])
            ]
            names += [name for name in found if name not in self.before and self._foreign(owner, held, name)]
        there = {f"{owner}.{name}" for owner, held in now.items() for name in held}
        names += [name for name in self.before if name not in there]
        own = {"_add"} if rank else set()
        names += [
            f"probe.{name}"
            for name in vars(self.probe)
            if callable(getattr(type(self.probe), name, None)) and name not in own
        ]
        for name in _probe_modules().keys() - self.modules:
            names += _unlike_file(name, sys.modules[name])
        if watch is not None and not watch.ours():
            names.append("sys.settrace or sys.monitoring")
        return sorted(names)

    def _foreign(self, owner: str, held: dict[str, Any], name: str) -> bool:
        """Whether a name that is new in an old owner shadows something."""
        short = name.removeprefix(f"{owner}.")
        if owner in self.modules:
            return not isinstance(held[short], ModuleType) and short != "__warningregistry__"
        return owner.rpartition(".")[0] in self.modules or (owner == "__main__" and hasattr(builtins, short))


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
    function = getattr(value, "__func__", value)
    return value, getattr(function, "__code__", None)


def _same(now: Seen, before: Seen) -> bool:
    return now[0] is before[0] and now[1] is before[1]


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
        if isinstance(value, FunctionType) and value.__module__ == name and code_sha256(value.__code__) not in known
    ]
