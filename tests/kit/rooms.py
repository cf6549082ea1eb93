"""The table of rooms, what modules import, and the picture in docs/architecture.md. ``python tests/kit/rooms.py``."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("patchlane", "reproducers", "model")  # the lowest first
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = yaml.safe_load((ROOT / "docs" / "rooms.yaml").read_text())
MARKS = re.compile(r"(?<=<!-- rooms -->\n).*?(?=<!-- /rooms -->)", re.S)


def modules():
    """{dotted name: path} of the audit, the engine and the model."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports():
    """{module: modules of ours that it imports, at its top or inside functions}."""
    known, graph = modules(), {}
    for name, path in known.items():
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        named = [f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) and n.module for a in n.names]
        named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        targets = (full if full in known else full.rpartition(".")[0] for full in named)
        graph[name] = {target for target in targets if target in known and target != name}
    return graph


def is_verb(name):
    """Whether a module is a file at the top of its package, a command."""
    return name.count(".") == 1 and not modules()[name].name.startswith("__")


def order(graph):
    """The modules so that each comes after all that it imports; graphlib.CycleError when there is a circle."""
    return [*TopologicalSorter(graph).static_order()]


def picture():
    """The rooms as text, the highest first."""
    rows = []
    for folder in PACKAGES[::-1]:
        rows.append(f"{folder}/".ljust(14) + "a file here is a command; nothing imports it")
        for room, meaning in reversed(ROOMS[folder].items()):
            rows.append(f"  {room}/".ljust(14) + meaning)
            inner = ROOMS.get(f"{folder}/{room}", {})
            rows += [f"    {name}".ljust(16) + said for name, said in reversed(inner.items())]
        rows.append("")
    return "```text\n" + "\n".join(rows).rstrip() + "\n```\n"


if __name__ == "__main__":
    PAGE.write_text(MARKS.sub(lambda _: picture(), PAGE.read_text()))
