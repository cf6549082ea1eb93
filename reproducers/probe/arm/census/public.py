"""What a touched file offers: its public names, how they are called, and what its classes and caches hold."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reproducers.probe.arm.census import DEFINES, IMPORTED, UNDEFINED

CONTAINERS = (dict, list, set, tuple, deque)
LIMIT = 20000  # objects that are looked at below a module
PRIVATE = r"(_[a-z]\w{3,})\b"
USED = re.compile(rf"(?:\.|['\"]){PRIVATE}")
DEFINED = re.compile(
    rf"(?:(?:def|class|import|as)\s+|(?<![\w.'\"`])|\.(?=\w+\s*(?::[^=\n]+)?=[^=])|setattr\([^,]+,\s*['\"]){PRIVATE}"
)


def modules(files: Iterable[str]) -> dict[str, types.ModuleType]:
    """{file: module} of those files below the import root that are imported."""
    named = {file: file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files}
    return {file: sys.modules[name] for file, name in named.items() if name in sys.modules}


def offers(module: types.ModuleType) -> dict[str, Any]:
    """{name: how it is called, or what it is} of a module's public names and of its classes' members.

    ``IMPORTED`` lists the names that another module defines: nobody has to offer them, but what moved is not gone.
    """
    found: dict[str, Any] = {IMPORTED: []}
    if hasattr(module, "__all__"):
        found["__all__"] = sorted(module.__all__)
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if (getattr(value, "__module__", None) or module.__name__) != module.__name__:
            found[IMPORTED].append(name)
            if inspect.isroutine(value):  # of a class that is imported the name is enough, for it has a file of its own
                found[name] = _offer(value)
            continue
        found[name] = _offer(value)
        if isinstance(value, type):
            for member, held in vars(value).items():
                if not member.startswith("_") or member in ("__init__", "__call__"):
                    found[f"{name}.{member}"] = _offer(held)
    return found


def _offer(value: Any) -> Any:
    """Parameters of what can be called, with "documented" where it has a docstring; else the type's name."""
    function = getattr(value, "__func__", value)
    if isinstance(function, property):
        return ["property"]
    if inspect.isroutine(function) or isinstance(function, type):
        try:
            rows = [_parameter(one) for one in inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            rows = ["unknown"]
        return [*rows, *(["documented"] if function.__doc__ else [])]
    if isinstance(value, types.ModuleType):
        return ["module"]
    return [type(value).__name__]


def _parameter(one: inspect.Parameter) -> str:
    default = "" if one.default is one.empty else f" = {one.default!r:.60}".split(" at 0x")[0]
    return f"{one.kind.name.lower()} {one.name}{default}"


def class_state(module: types.ModuleType) -> dict[str, int]:
    """{class.attribute: identity} of the module's own classes."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return {f"{one.__qualname__}.{name}": id(held) for one in own for name, held in vars(one).items()}


def held(module: types.ModuleType) -> tuple[int, int]:
    """(tensors, entries) that the containers and caches of the module's globals, functions and classes hold."""
    import torch

    tensors = entries = 0
    for value in _below(module):
        tensors += isinstance(value, torch.Tensor)
        entries += len(value) if isinstance(value, CONTAINERS) else 0
    return tensors, entries


def _below(module: types.ModuleType) -> Iterator[Any]:
    """What the module's own names hold, through containers, caches and plain objects."""
    seen, todo = set[int](), [value for value in vars(module).values() if _own(module, value)]
    while todo and len(seen) < LIMIT:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, types.FunctionType):
            todo += [value.__defaults__, value.__kwdefaults__, value.__dict__]
            todo += [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
        elif isinstance(value, type):
            todo += [inner for inner in vars(value).values() if _own(module, inner)]
        elif isinstance(value, (*CONTAINERS, functools._lru_cache_wrapper)):
            todo += [inner for inner in gc.get_referents(value) if _own(module, inner)]
        elif type(value).__module__ == module.__name__:
            todo += list(getattr(value, "__dict__", {}).values())


def private(tree: Path, files: Iterable[str]) -> dict[str, list[str]]:
    """Private names that touched files define, and those that lines of their packages use and no line defines.

    Read from the sources. What torch and Python define is among the latter, on both trees.
    """
    used, defined, touched, own = set[str](), set[str](), set[str](), {tree / file for file in files}
    for package in sorted({tree / path.relative_to(tree).parts[0] for path in own}):
        for path in sorted(package.rglob("*.py")) if package.is_dir() else [package]:
            text = path.read_text(errors="replace")
            used.update(USED.findall(text))
            found = DEFINED.findall(text)
            defined.update(found)
            touched.update(found if path in own else ())
    return {DEFINES: sorted(touched), UNDEFINED: sorted(used - defined)}


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _own(module: types.ModuleType, value: Any) -> bool:
    """Whether it is no module, and no class or function of another one."""
    if isinstance(value, types.ModuleType):
        return False
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | functools._lru_cache_wrapper):
        return getattr(value, "__module__", None) == module.__name__
    return True
