"""What a touched file offers: its public names, how they are called, and what its classes and caches hold."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import importlib.util
import inspect
import re
import symtable
import sys
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from reproducers.probe.arm.census import AMISS, DEFINES, HOLDS, IMPORTED, OPTION, OTHERWISE, UNDEFINED

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


def facts(module: types.ModuleType, exported: Iterable[str], classes: ClassState, wanted: bool) -> dict[str, Any]:
    """What a touched file offers, and what it holds by now; ``exported`` as ``offers`` has it, ``classes`` of before.

    A fact that cannot be told is left out or, where another tree has told it (``wanted``), told by its error.
    """
    both = functools.cache(lambda: held(module))
    asked: dict[str, Callable[[], Any]] = {
        "offers": lambda: offers(module, exported),
        AMISS: lambda: amiss(module),
        HOLDS: lambda: both()[0],
        "entries held at the end": lambda: both()[1],
        "class attributes changed": lambda: changed(classes, class_state(module)),
    }
    found = dict[str, Any]()
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except Exception as error:
            if wanted:
                found[name] = f"{OTHERWISE}: {type(error).__name__}"
    return found


def offers(module: types.ModuleType, exported: Iterable[str] = ()) -> dict[str, Any]:
    """{name: how it is called, or what it is} of a module's public names and of its classes' members.

    ``IMPORTED`` lists the names that another module defines: nobody has to offer them, but what moved is not gone.
    Of ``exported`` functions, private ones too, how long the tuples are that they return.
    """
    found: dict[str, Any] = {IMPORTED: []}
    if hasattr(module, "__all__"):
        found["__all__"] = sorted(module.__all__)
    for name, value in {**vars(module), **_made_when_asked(module)}.items():
        if name.startswith("_") and name not in exported:
            continue
        if isinstance(value, types.ModuleType):
            found[IMPORTED].append(name)
            continue
        if (getattr(_layers(value)[-1], "__module__", None) or module.__name__) != module.__name__:
            found[IMPORTED].append(name)
            if inspect.isroutine(value):  # of a class that is imported the name is enough, for it has a file of its own
                found[name] = _offer(value)
            continue
        found[name] = _offer(value) + (_returned(value) if name in exported else [])
        if isinstance(value, type):
            for member, held in vars(value).items():
                if not member.startswith("_") or member in ("__init__", "__call__"):
                    found[f"{name}.{member}"] = _offer(held)
    return found


def _made_when_asked(module: types.ModuleType) -> dict[str, Any]:
    """{name: value} of what a module has that is not in it: by its ``__getattr__``, or by a class of its own.

    What cannot be made here, for want of a library, is left out.
    """
    asked = vars(module).get("__getattr__")
    code = getattr(asked, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(asked, "__closure__", None) or () if _filled(cell)]
    tables = [vars(module).get(name) for name in getattr(code, "co_names", ())]
    places = [*getattr(code, "co_consts", ()), *cells, *tables, *vars(type(module))]
    words = [word for one in places for word in (one if isinstance(one, (*CONTAINERS, frozenset)) else (one,))]
    found = dict[str, Any]()
    for name in sorted({word for word in words if isinstance(word, str)}):
        if name.isidentifier() and not name.startswith("__"):
            with contextlib.suppress(Exception):
                found[name] = getattr(module, name)
    return found


def _offer(value: Any) -> Any:
    """Parameters of what can be called, with "documented" where it has a docstring; of a kernel of Triton's what it is
    told when it is compiled and tuned; else the type's name."""
    function = getattr(value, "__func__", value)
    if _of_triton(value):
        return _kernel(value)
    if isinstance(function, property):
        return ["property"]
    if inspect.isroutine(function) or isinstance(function, type):
        try:
            rows = [_parameter(one) for one in inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            rows = ["unknown"]
        return [*rows, *(["documented"] if function.__doc__ else [])]
    return [type(value).__name__]


def _kernel(value: Any) -> list[str]:
    """The options of a kernel, which are its constants, and the arguments of which each value is tuned for anew.

    Its other arguments are between it and the host's code.
    """
    *around, function = _layers(value)
    kinds = getattr(function, "__annotations__", {})
    return [
        type(value).__name__,
        *(f"tuned anew for {key}" for layer in around for key in getattr(layer, "keys", ())),
        *(f"{OPTION}{name}" for name, kind in kinds.items() if "constexpr" in str(kind)),
    ]


def _layers(value: Any) -> list[Any]:
    """A kernel of Triton's, what it is wrapped in first and its function last; another value alone."""
    layers = [value]
    while _of_triton(layers[-1]) and hasattr(layers[-1], "fn"):
        layers.append(layers[-1].fn)
    return layers


def _of_triton(value: Any) -> bool:
    return str(type(value).__module__).startswith("triton.")


def _returned(value: Any) -> list[str]:
    """How many values a function hands back at once."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body
    except (TypeError, ValueError, OSError, SyntaxError):
        return []
    found, todo = set[int](), list[ast.AST](ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            found.add(len(node.value.elts))
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    return [f"returns {many} values" for many in sorted(found)]


def exported(tree: Path, files: Iterable[str]) -> dict[str, set[str]]:
    """{touched file: names that another file of its package imports from it and does not use, for others to find}."""
    found = {file: set[str]() for file in files}
    stems = {Path(file).stem: file for file in found}
    asks = re.compile(rf"\b(?:{'|'.join(map(re.escape, stems))})\s+import\b")
    for package in sorted({tree / Path(file).parts[0] for file in found}):
        for path in package.rglob("*.py") if package.is_dir() else ():
            text = path.read_text(errors="replace")
            if not asks.search(text):
                continue
            with contextlib.suppress(SyntaxError):
                nodes = list(ast.walk(ast.parse(text)))
                used = {node.id for node in nodes if isinstance(node, ast.Name)}
                for node in nodes:
                    if isinstance(node, ast.ImportFrom) and (file := stems.get((node.module or "").rpartition(".")[2])):
                        found[file] |= {one.name for one in node.names if (one.asname or one.name) not in used}
    return found


def _parameter(one: inspect.Parameter) -> str:
    default = "" if one.default is one.empty else f" = {one.default!r:.60}".split(" at 0x")[0]
    return f"{one.kind.name.lower()} {one.name}{default}"


ClassState = dict[str, tuple[int, int]]


def class_state(module: types.ModuleType) -> ClassState:
    """{class.attribute: (the class's identity, the attribute's)} of the module's own classes."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return {f"{one.__qualname__}.{name}": (id(one), id(held)) for one in own for name, held in vars(one).items()}


def changed(before: ClassState, now: ClassState) -> list[str]:
    """Attributes that are others by now; not of classes that another import of the file has made."""
    known = {owner for owner, _ in before.values()}
    return sorted(name for name, (owner, held) in now.items() if owner in known and before.get(name) != (owner, held))


def held(module: types.ModuleType) -> tuple[int, int]:
    """(tensors, entries) that the containers and caches of the module's globals, functions and classes hold.

    A tuple is one entry of what holds it, however long: a key of a cache is one.
    """
    import torch

    tensors = entries = 0
    for value in _below(module):
        tensors += isinstance(value, torch.Tensor)
        entries += len(value) if isinstance(value, CONTAINERS) and not isinstance(value, tuple) else 0
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


def amiss(module: types.ModuleType) -> list[str]:
    """What tools ask of each module and this one does not do: be found by its name, list its names, say what it is."""
    found = [
        name for name in ("__doc__", "__file__", "__loader__", "__package__", "__spec__") if not hasattr(module, name)
    ]
    try:
        found += [] if importlib.util.find_spec(module.__name__) else ["find_spec()"]
    except Exception:
        found.append("find_spec()")
    imported = sys.modules.copy()  # whole: another thread may import
    try:
        dir(module)
    except Exception:
        found.append("dir()")
    return found + ["dir() without imports"] * bool(sys.modules.copy().keys() - imported.keys())


def unbound(path: Path, module: types.ModuleType | None) -> list[str]:
    """Names that the file's lines read as globals and that neither a line of it, nor Python, nor an import of ``*``
    binds: what a function that no check runs ends with a NameError for.

    Read from the source, and from the module, if somebody has imported it.
    """
    try:
        table = symtable.symtable(path.read_text(errors="replace"), path.name, "exec")
    except (OSError, SyntaxError):
        return []
    read, bound = set[str](), {*(vars(module) if module else ()), *vars(builtins)}
    scopes = deque([table])
    while scopes:
        scope = scopes.popleft()
        scopes.extend(scope.get_children())
        for symbol in scope.get_symbols():
            if scope is table or symbol.is_global():
                made = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
                (bound if made else read).add(symbol.get_name())
    return sorted(name for name in read - bound if not name.startswith("__"))  # a module has those by itself


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
