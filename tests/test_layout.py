"""The rooms of docs/rooms.yaml: what may import what, how large a room is, and that tests mirror them."""

import ast

import pytest
from rooms import MARKS, PACKAGES, PAGE, ROOMS, ROOT, imports, is_verb, modules, order, picture

GRAPH = imports()


@pytest.mark.parametrize("folder", ROOMS)
def test_a_room_imports_only_rooms_below_it(folder):
    floors, prefix = list(ROOMS[folder]), folder.replace("/", ".") + "."
    inside = {name: name.removeprefix(prefix).split(".")[0] for name in GRAPH if name.startswith(prefix)}
    assert {room for name, room in inside.items() if not is_verb(name)} - {"__main__"} == set(floors)
    up = [
        f"{name} imports {target}"
        for name, room in inside.items()
        for target in GRAPH[name]
        if room in floors and target in inside and floors.index(inside[target]) > floors.index(room)
    ]
    assert up == []


def test_the_audit_imports_nothing_above_it():
    """It is a wheel of its own; the model stands on the engine, and both on the audit's rooms."""
    below = {"patchlane": ("patchlane",), "reproducers": ("patchlane", "reproducers")}
    up = [
        (name, target)
        for name in GRAPH
        for target in GRAPH[name]
        if target.split(".")[0] not in below.get(name.split(".")[0], PACKAGES)
    ]
    assert up == []


def test_no_circle():
    assert len(order(GRAPH)) == len(GRAPH)


def test_a_verb_is_a_leaf_and_short():
    verbs = {name for name in GRAPH if is_verb(name)}
    assert [(name, target) for name in GRAPH for target in GRAPH[name] & verbs if name != target] == []
    assert [name for name in verbs if modules()[name].read_text().count("\n") > 120] == []


def test_no_module_imports_another_ones_private_names():
    trees = {name: ast.parse(path.read_text()) for name, path in modules().items()}
    named = [
        (name, node.module or "", a.name)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for a in node.names
    ]
    ours = [row for row in named if row[1].split(".")[0] in ("patchlane", "reproducers", "model")]
    assert ours and [row for row in ours if row[2].startswith("_")] == []


def test_a_room_holds_ten_files_or_folders_at_most():
    folders = {path.parent for path in modules().values()} - {ROOT / name for name in PACKAGES}
    held = {folder: [p for p in folder.iterdir() if p.suffix == ".py" or p.is_dir()] for folder in folders}
    names = {folder: {p.name for p in paths} - {"__init__.py", "__pycache__"} for folder, paths in held.items()}
    assert {str(folder.relative_to(ROOT)): len(inner) for folder, inner in names.items() if len(inner) > 10} == {}


def test_tests_mirror_the_rooms():
    known, astray = modules(), []
    for path in (ROOT / "tests").rglob("test_*.py"):
        parts = path.relative_to(ROOT / "tests").parts
        package = parts if parts[0] in ("patchlane", "model") else ("reproducers", *parts)
        module = ".".join((*package[:-1], path.stem.removeprefix("test_")))
        if "journeys" not in parts and module not in known and path.name != "test_layout.py":
            astray.append(str(path.relative_to(ROOT)))
    assert astray == []


def test_the_picture_shows_the_table():
    assert MARKS.search(PAGE.read_text())[0] == picture(), "python tests/kit/rooms.py"
