"""Join a reproducer and the parts of the probe that it uses into one module of plain code.

Names alone decide: a definition of the probe's modules is kept if kept code names it, a method of a kept class if kept
code has an attribute of that name. So the modules below may not define a name twice, nor a name that a reproducer
defines. Kept code is copied unchanged, but docstrings keep their first line only, and those of methods and private
functions go.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from patchlane.base.errors import PatchlaneError
from reproducers.base.start import OURS
from reproducers.record.schema import parsed

ENGINE = Path(__file__).resolve().parents[2] / "probe"
# a reproducer without `from __future__ import annotations` evaluates annotations, so the names in them come first
LANES = ("lanes/triton", "lanes/megatron", "lanes/transformer_engine", "lanes/tilelang")
MODULES = ("checks", "ranks", "stamp", "measuring", *LANES, "api")
PROBE = "process"
STAYS = "reproducers.probe.arm.watched"  # an `if` that imports it is left out whole
ON_CPU = ("device == 'cpu'", "lane == 'cpu'")  # code under these tests serves that lane only
RULER = f"# {'-' * 20} what it reports through {'-' * 20}\n"
WIDTH = 120
_CONSTANT = ast.Assign | ast.AnnAssign


@dataclass
class Uses:
    """Names and attributes that code reads."""

    names: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def add(self, nodes: Iterable[ast.AST]) -> None:
        """Take in what ``nodes`` use."""
        for names, attributes in map(_used, nodes):
            self.names |= names
            self.attributes |= attributes


@functools.lru_cache(maxsize=4096)
def _used(top: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """(names, attributes) that a node reads. The probe's nodes are asked for once for every reproducer."""
    nodes = [*ast.walk(top)]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    dotted = {name for node in attributes if (name := _dotted(node))}  # a.b, as it may have been imported
    return frozenset(names | dotted), frozenset(node.attr for node in attributes)


def _dotted(node: ast.expr) -> str:
    """``a.b`` of a chain of attributes that begins with a name, "" of another expression."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


@dataclass
class Module:
    """One of the probe's modules: its lines and top nodes, the nodes that are left out, and the nodes that are kept."""

    name: str
    lines: list[str]
    body: list[ast.stmt]
    out: list[ast.stmt]
    kept: set[ast.stmt] = field(default_factory=set)

    @classmethod
    def of(cls, name: str, text: str, lanes: Collection[str]) -> Module:
        """That of a file with this text, without code that only the engine or a lane not among ``lanes`` needs."""
        body, out = _left(text, frozenset(lanes))
        return cls(name, text.splitlines(keepends=True), body, out)

    def definitions(self) -> Iterator[tuple[str, ast.stmt]]:
        """(name, node) of each definition at its top."""
        for node in self.body:
            yield from ((name, node) for name in _defined(node))

    def keep(self, uses: Uses) -> bool:
        """Keep the definitions in ``uses`` and add what they use in turn; returns whether any was new."""
        before = len(self.kept)
        for name, node in self.definitions():
            if name in uses.names and node not in self.kept:
                self.kept.add(node)
                uses.add(_shell(node) if isinstance(node, ast.ClassDef) else [node])
        for node in [n for n in self.kept if isinstance(n, ast.ClassDef)]:
            for member in filter(_sheddable, node.body):
                asked = any(re.fullmatch("__.+__", name) or name in uses.attributes for name in _defined(member))
                if asked and member not in self.kept:
                    self.kept.add(member)
                    uses.add([member])
        return len(self.kept) > before

    def text(self) -> str:
        """The kept code, as it stands in the file."""
        text, before = "", None
        for node in [node for node in self.body if node in self.kept]:
            close = isinstance(before, _CONSTANT) and isinstance(node, _CONSTANT)
            text, before = text + ("" if close or before is None else "\n\n") + self._cut(node), node
        return text

    def uses(self) -> Uses:
        """The names and attributes that the kept code reads."""
        uses = Uses()
        for node in self.body:
            if node in self.kept:
                members = [n for n in getattr(node, "body", []) if n in self.kept]
                uses.add([*_shell(node), *members] if isinstance(node, ast.ClassDef) else [node])
        return uses

    def _cut(self, node: ast.stmt) -> str:
        members = node.body if isinstance(node, ast.ClassDef) else []
        unused = [member for member in members if _sheddable(member) and member not in self.kept]
        gone = set[int]().union(*map(self._span, [*self.out, *unused]))
        rows = list(self.lines)
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(inner):
                docstring = inner.body[0]
                if isinstance(inner, ast.FunctionDef) and _inside(inner, node) and len(inner.body) > 1:
                    gone |= self._span(docstring)
                first, last = docstring.lineno, docstring.end_lineno or 0
                gone |= set(range(first + 1, last + 1))
                if last != first:
                    rows[first - 1] = rows[first - 1].rstrip() + '"""\n'
        span = range(self._first(node), (node.end_lineno or 0) + 1)
        text = "".join(rows[n - 1] for n in span if n not in gone)
        text = re.sub(r"  # type: ignore\b[^\n]*?(?=  #|\n)", "", text)
        return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"

    def _first(self, node: ast.stmt) -> int:
        """Its first line, decorators and the comment above it included."""
        first: int = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        while self.lines[first - 2].lstrip().startswith("#"):
            first -= 1
        return first

    def _span(self, node: ast.stmt) -> set[int]:
        """Its lines and the blank ones after it."""
        last = node.end_lineno or 0
        while last < len(self.lines) and not self.lines[last].strip():
            last += 1
        return set(range(self._first(node), last + 1))


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name) and n.id != "__all__"]


def _stays(node: ast.AST) -> bool:
    """Whether a node has no place in the single file: it imports the engine, or serves this repository only."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in OURS
    inner = node.body if isinstance(node, ast.If) else []
    return any(isinstance(n, ast.ImportFrom) and n.module == STAYS for n in inner)


class _LeaveOut(ast.NodeTransformer):
    """Moves to ``out`` the nodes that stay here, and code for the CPU if the pack has no such lane."""

    def __init__(self, lanes: Collection[str]) -> None:
        self.lanes, self.out = lanes, list[ast.stmt]()

    def visit(self, node: ast.AST) -> ast.AST | None:
        """The node, or None if it is left out."""
        of_cpu = isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) in ON_CPU
        if not (_stays(node) or (of_cpu and "cpu" not in self.lanes)):
            return self.generic_visit(node)
        assert isinstance(node, ast.stmt)
        self.out.append(node)
        return None


@functools.lru_cache(maxsize=64)
def _left(text: str, lanes: frozenset[str]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """(top nodes, nodes left out) of a file with this text, shared by all who ask: to be read, never changed."""
    leave = _LeaveOut(lanes)
    return [node for node in ast.parse(text).body if leave.visit(node)], leave.out


def _shell(node: ast.ClassDef) -> list[ast.AST]:
    """The parts of a class that are always kept with it."""
    return [*node.bases, *node.keywords, *node.decorator_list, *(n for n in node.body if not _sheddable(n))]


def _sheddable(member: ast.stmt) -> bool:
    """Whether a class can lose this member if nobody uses it: a method, or an attribute made by a call."""
    made = isinstance(member, ast.Assign) and isinstance(member.value, ast.Call)
    return made or isinstance(member, ast.FunctionDef)


def _inside(function: ast.FunctionDef, top: ast.stmt) -> bool:
    """Whether only the code around it uses the function: a method, a private or an inner function."""
    return function is not top or function.name.startswith("_")


class Imports:
    """Imports of several modules as one sorted block; PatchlaneError if a name would mean two things."""

    def __init__(self) -> None:
        self.bound: dict[str, tuple[str, str | None]] = {}  # {name in the file: (module, name in it)}

    def add(self, body: list[ast.stmt], wanted: set[str] | None, where: str) -> None:
        """The top-level imports of ``body``, only of ``wanted`` names where given."""
        for node in body:
            if _stays(node) or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                continue
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                module, name = (
                    (node.module or "", alias.name) if isinstance(node, ast.ImportFrom) else (alias.name, None)
                )
                bound = alias.asname or alias.name.split(".")[0]
                key = bound if name or alias.asname else alias.name  # import a.b beside import a
                if wanted is not None and key not in wanted:
                    continue
                if self.bound.setdefault(key, (module, name)) != (module, name):
                    raise PatchlaneError(f"{where}: {bound} is imported from two places", "import it under one name")

    def text(self) -> str:
        """Standard library first, then the rest, each as isort does."""
        sections: dict[bool, list[str]] = {False: [], True: []}
        for bound, (module, name) in sorted(self.bound.items(), key=lambda item: item[1][0].lower()):
            if name is None:
                row = f"import {module}" + (f" as {bound}" if bound != module else "")
                sections[_foreign(module)].append(row)
        for module in sorted({m for m, name in self.bound.values() if name}, key=str.lower):
            names = [(n, b) for b, (m, n) in self.bound.items() if m == module and n]
            rows = [n + (f" as {b}" if b != n else "") for n, b in sorted(names, key=lambda pair: _by_type(pair[0]))]
            line = f"from {module} import {', '.join(rows)}"
            wrapped = f"from {module} import (\n" + "".join(f"    {row},\n" for row in rows) + ")"
            sections[_foreign(module)].append(line if len(line) <= WIDTH else wrapped)
        return "\n\n".join("\n".join(rows) for rows in sections.values() if rows) + "\n"


def _foreign(module: str) -> bool:
    return module.split(".")[0] not in sys.stdlib_module_names


def _by_type(name: str) -> tuple[int, str]:
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)


def join(source: str, where: str, lanes: Collection[str]) -> tuple[str, str]:
    """(imports, all other code) of the single file for a reproducer's ``source``: its own first, then the probe's.

    Its ``probe.NAME`` becomes NAME. Constants that it makes of the probe, as a Signature, and its last ``if __name__``
    come after the probe. Raises PatchlaneError, with ``where``, for code that cannot be ordered so.
    """
    texts = tuple((name, (ENGINE / f"{name}.py").read_text(encoding="utf-8")) for name in (*MODULES, PROBE))
    return _join(source, where, frozenset(lanes), texts)


@functools.lru_cache(maxsize=128)
def _join(source: str, where: str, lanes: frozenset[str], probe: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    body = parsed(source).body
    asked = [n for node in body for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    uses = Uses(names={n.attr for n in asked if _of_probe(n)})
    uses.attributes = {n.attr for n in asked if _dotted(n.value) != "self"}  # which is never the probe
    modules = [Module.of(name, text, lanes) for name, text in probe]
    while any([module.keep(uses) for module in modules]):
        pass
    own = {name for node in body for name in _defined(node)}
    imports = Imports()
    imports.add(body, None, where)
    for module in modules:
        imports.add(module.body, module.uses().names, f"{module.name}.py")
    _refuse_twice(own, modules, imports, where)
    now, later = _ordered(body, where)
    rest = "\n\n".join(text for text in (module.text() for module in modules) if text)
    lines = _without_probe(source, body, [n for n in asked if _of_probe(n)])
    texts = [_segments(lines, body, now), f"{RULER}\n\n{rest}", _segments(lines, body, later)]
    blank = "\n" if re.match("(def|class|@)", texts[0]) else ""  # as isort has it after imports
    return imports.text() + blank, "\n\n".join(texts)


def _of_probe(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "probe"


def _refuse_twice(own: set[str], modules: list[Module], imports: Imports, where: str) -> None:
    defined = dict.fromkeys(own, where)
    for module in modules:
        for name in {name for name, node in module.definitions() if node in module.kept}:
            if name in defined:
                raise PatchlaneError(f"{module.name}.py and {defined[name]} both define {name}", "rename one of them")
            defined[name] = f"{module.name}.py"
    for name in imports.bound.keys() & defined.keys():
        raise PatchlaneError(f"{defined[name]} defines {name}, which another part imports", "rename it")


def _ordered(body: list[ast.stmt], where: str) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """(nodes before the probe, nodes after it) of a reproducer, without docstring and imports."""
    now: list[ast.stmt] = []
    later: list[ast.stmt] = []
    late = {"probe"}
    for node in body[1:]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if not late & {n.id for e in _eager(node) for n in ast.walk(e) if isinstance(n, ast.Name)}:
            now.append(node)
        elif isinstance(node, _CONSTANT) or node is body[-1]:
            late |= set(_defined(node))
            later.append(node)
        else:
            what = "uses the probe, or what is made of it, when the file is read"
            raise PatchlaneError(f"{where}:{node.lineno}: {what}", "use it inside the function")
    return now, later


def _eager(node: ast.stmt) -> list[ast.AST]:
    """The expressions that run when the definition is read."""
    if isinstance(node, ast.FunctionDef):
        return [*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)]
    if isinstance(node, ast.ClassDef):
        return [*node.bases, *node.keywords, *node.decorator_list, *(e for n in node.body for e in _eager(n))]
    if isinstance(node, ast.AnnAssign):
        return [node.value] if node.value else []
    return [node]


def _annotations(top: ast.stmt) -> Iterator[ast.AST]:
    """All nodes in annotations of functions."""
    for node in ast.walk(top):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.AST):
                yield from ast.walk(annotation)


def _without_probe(source: str, body: list[ast.stmt], hits: list[ast.Attribute]) -> list[bytes]:
    """The lines, ``probe.`` taken away at each hit."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    quoted = set() if "__future__" in source else {n for top in body for n in _annotations(top)}
    for hit in sorted(hits, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        line, at = lines[hit.lineno - 1], hit.col_offset
        if not line[at:].startswith(f"probe.{hit.attr}".encode()):  # Python 3.11 gives wrong columns in an f-string
            raise PatchlaneError(f"line {hit.lineno}: probe is named where it cannot be cut out", "name it outside")
        name = f'"{hit.attr}"' if hit in quoted else hit.attr  # evaluated before the probe's names exist
        lines[hit.lineno - 1] = line[:at] + name.encode() + line[at + len(f"probe.{hit.attr}") :]
    return lines


def _segments(lines: list[bytes], body: list[ast.stmt], nodes: list[ast.stmt]) -> str:
    """The text of these top-level nodes, each with the comments and blank lines above it."""
    text = []
    for node in nodes:
        before = body[body.index(node) - 1]
        end = node.end_lineno if node is not body[-1] else None  # with the comments that follow
        text += [line.decode() for line in lines[before.end_lineno or 0 : end]]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(text)).strip("\n") + "\n"
