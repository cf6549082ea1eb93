"""The digest of the code that decides leaves nothing out that an arm runs."""

import ast
from pathlib import Path

import pytest
from toy import write_tree

from reproducers.record import engine
from reproducers.record.schema import ROOT

HERE = ROOT / "reproducers"
OURS = ("patchlane", "reproducers")


def imported(path):
    """Modules of the engine that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (file for name in names if (file := ROOT / f"{name.replace('.', '/')}.py").is_file())


def covered(path):
    inside = path.relative_to(ROOT).with_suffix("").as_posix()
    return any(inside == place or inside.startswith(f"{place}/") for place in engine.PLACES)


def test_every_module_that_an_arm_imports_is_in_it():
    todo, visited = [file for file in HERE.rglob("watched.py")], set()
    assert todo
    while todo:
        file = todo.pop()
        assert covered(file), file
        visited.add(file)
        todo += set(imported(file)) - visited
    assert len(visited) > 10


@pytest.mark.parametrize("name", ["arms", "keeper", "experiment", "patching", "rulings"])
def test_what_starts_and_rules_an_arm_is_in_it(name):
    (file,) = HERE.rglob(f"{name}.py")
    assert covered(file)


def test_places_are_there():
    for place in engine.PLACES:
        assert (ROOT / place).is_dir() or (ROOT / f"{place}.py").is_file(), place


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest over a folder and a file of a made-up engine, after writing these files."""
    monkeypatch.setattr(engine, "ROOT", tmp_path)
    monkeypatch.setattr(engine, "PLACES", ("room", "alone"))

    def made(**files):
        named = {f"{name.replace('__', '/')}.py": text for name, text in files.items()}
        write_tree(Path(tmp_path), named)
        return engine.digest.__wrapped__()

    return made


def test_each_file_of_a_folder_counts_and_no_other(digest):
    first = digest(room__one="a", room__inner__two="b", alone="c", elsewhere="d")
    assert digest(elsewhere="e") == first
    assert len({first, digest(room__inner__two="x"), digest(alone="x"), digest(room__three="x")}) == 4
