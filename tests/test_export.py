"""export: one file, complete, readable, independent of this repository, and the same verdict as in the suite."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from reproducers import export, patching, pins
from reproducers.arms import ArmSpec, run_arm
from reproducers.errors import CannotTestHere, PatchlaneError
from reproducers.observe import SENTINELS
from reproducers.schema import ROOT, load_packs, select
from reproducers.store import Store

PACKS = load_packs()
PEP723 = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
TOY = '''\
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""The toy adds one too many."""

from __future__ import annotations

import importlib
import inspect

from reproducers import probe


def reproduce(p):
    if False:
        p.megatron_cpu()
    importlib.import_module("reproducers.lane_megatron")
    print("probe from", probe.__file__)
    print("source", inspect.getsource(probe.Probe.error).splitlines()[0].strip())
    p.error("sum", p.upstream("toy").add(1, 1) - 2, 0.1, reference="2", bug_above=0.9)


if __name__ == "__main__":
    probe.main(reproduce, pack=9, package="toy")
'''


def read_embedded(text):
    """{module: text} as Python reads the exported file."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            found[ast.literal_eval(node.targets[0].slice)] = ast.literal_eval(node.value)
    return found


@pytest.fixture
def toy(tmp_path):
    """A pack whose reproducer needs nothing installed, and a tree that has its bug."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/reproducer.py").write_text(TOY)
    for name, extra in (("buggy", " + 1"), ("sound", "")):
        (tmp_path / name / "toy").mkdir(parents=True)
        (tmp_path / name / "toy/__init__.py").write_text(f"def add(a, b):\n    return a + b{extra}\n")
    (tmp_path / "out").mkdir()
    (pack,) = select(["pack09"], PACKS)
    return pack.model_copy(update={"folder": tmp_path / "pack"})


def run(file, *args, isolated=True, site=True, path=None, timeout=300):
    """Run an exported file from its own folder, without this repository on the path."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | (
        {"PYTHONPATH": str(path)} if path else {}
    )
    command = [
        sys.executable,
        *(["-I"] if isolated else ["-s", "-P"]),
        *([] if site else ["-S"]),
        file.name,
        *map(str, args),
    ]
    return subprocess.run(command, cwd=file.parent, env=env, capture_output=True, text=True, timeout=timeout)


def record(done):
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("pack", PACKS, ids=lambda p: p.id)
def test_exported_file_of_every_pack(pack):
    text, source = export.render(pack), pack.reproducer.read_text()
    tree = ast.parse(text)
    compile(text, "exported.py", "exec")
    assert ast.get_docstring(tree) == ast.get_docstring(ast.parse(source))
    assert all(word in text for word in SENTINELS)
    assert str(ROOT) not in text and "make setup" not in text and "python -m reproducers" not in text
    assert len(text) <= 80_000  # over ISSUE_LIMIT it is attached to an issue instead of pasted, as the verb says
    (header,) = PEP723.finditer(text)
    assert header.start() == 0 and header["type"] == "script"
    script = tomllib.loads("".join(line[2:] for line in header["content"].splitlines(keepends=True)))
    assert script["requires-python"] and [Requirement(r) for r in script["dependencies"]]


@pytest.mark.parametrize("pack", PACKS, ids=lambda p: p.id)
def test_the_reproducers_own_code_is_unchanged(pack):
    source = pack.reproducer.read_text()
    parts = export.split(source)
    assert "".join(parts) == source
    assert export.render(pack).endswith(parts[-1])
    assert export.render(pack) == export.render(pack)


@pytest.mark.parametrize("pack", PACKS, ids=lambda p: p.id)
def test_embedded_modules_are_this_repositorys_and_complete(pack):
    found = read_embedded(export.render(pack))
    source = pack.reproducer.read_text()
    methods = {"triton_interpreter": "triton", "megatron_cpu": "megatron", "lower": "tilelang", "nvcc": "tilelang"}
    methods |= {"transformer_engine": "te"}
    lanes = {f"reproducers.lane_{lane}" for method, lane in methods.items() if re.search(rf"\bp\.{method}\b", source)}
    assert lanes == {name for name in found if "lane_" in name}
    for name, text in found.items():
        path = ROOT / "reproducers" / ("__init__.py" if name == "reproducers" else name.split(".")[1] + ".py")
        original = path.read_text()
        for ours, theirs in export.REMEDIES.items():
            original = original.replace(ours, theirs)
        assert text == original
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("reproducers."):
                assert node.module in found


def test_toy_runs_alone_and_tells_the_trees_apart(toy, tmp_path):
    file = tmp_path / "out/toy_export.py"
    file.write_text(export.render(toy))
    buggy, sound = run(file, "--tree", tmp_path / "buggy"), run(file, "--tree", tmp_path / "sound")
    assert buggy.returncode == 0 and "\nBUG_REPRODUCED: sum" in buggy.stdout, buggy.stdout + buggy.stderr
    assert record(sound)["outcome"] == "healthy" and record(sound)["sentinel"] is None
    assert f"probe from {file.name}/reproducers/probe.py" in buggy.stdout.replace(f"{file.parent}/", "")
    assert "source def error(" in buggy.stdout
    assert "The toy adds one too many." in run(file, "--help").stdout


def test_toy_without_a_tree_uses_the_installed_package(toy, tmp_path):
    file = tmp_path / "out/toy_export.py"
    file.write_text(export.render(toy))
    done = run(file, isolated=False, path=tmp_path / "buggy")
    assert record(done)["sentinel"] == "BUG_REPRODUCED"
    nowhere = run(file)
    assert nowhere.returncode == 77 and "--tree" in record(nowhere)["remedy"]


@pytest.mark.parametrize("dropped", sorted(export.embedded(TOY)))
def test_a_dropped_module_breaks_the_file(toy, tmp_path, dropped):
    modules = {name: text for name, text in export.embedded(TOY).items() if name != dropped}
    file = tmp_path / "out/toy_export.py"
    file.write_text(export.render(toy, modules))
    done = run(file, "--tree", tmp_path / "buggy", site=False)  # an installed engine must not fill the gap
    assert "BUG_REPRODUCED: " not in done.stdout
    assert dropped.split(".")[-1] in done.stdout + done.stderr


def test_another_reproducers_package_on_the_path_does_not_get_in(toy, tmp_path):
    file = tmp_path / "out/toy_export.py"
    file.write_text(export.render(toy))
    (tmp_path / "buggy/reproducers").mkdir()
    (tmp_path / "buggy/reproducers/__init__.py").write_text("raise SystemExit('the wrong package')\n")
    done = run(file, isolated=False, path=tmp_path / "buggy")
    assert record(done)["sentinel"] == "BUG_REPRODUCED"


@pytest.mark.parametrize(
    ("old", "new", "said"), [("# ///", "#", "PEP 723"), ('"""The toy', 'x = """The toy', "docstring")]
)
def test_malformed_reproducers_are_refused(toy, old, new, said):
    toy.reproducer.write_text(TOY.replace(old, new))
    with pytest.raises(PatchlaneError, match=said):
        export.render(toy)


def test_text_that_would_end_the_literal_is_refused():
    with pytest.raises(PatchlaneError, match="cannot be embedded"):
        export._for_strangers("x", "a = '''b'''\n")


def test_command_line(tmp_path):
    def verb(*args):
        command = [sys.executable, "-m", "reproducers.export", *args]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    target = tmp_path / "new/pack09.py"
    written, printed = verb("pack09", "-o", str(target)), verb("9")
    assert written.returncode == printed.returncode == 0 and "65,536" in written.stderr
    assert target.read_text() == printed.stdout
    for bad in (("pack99",), ("9", "-o", str(tmp_path))):
        refused = verb(*bad)
        assert refused.returncode == 2 and "mend:" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.upstream
def test_pack09_alone_says_what_it_says_in_the_suite(tmp_path):
    for module in ("torch", "triton", "numpy"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    (pack,) = select(["pack09"], PACKS)
    try:
        tree = pins.pin_tree(Store(), pack, pack.pins["live"], {})
    except CannotTestHere as error:
        pytest.skip(str(error))
    root = patching.import_root(tree.path, pack.upstream.source_root)
    file = tmp_path / "pack09.py"
    file.write_text(export.render(pack))
    done = run(file, "--tree", root)
    assert "\nBUG_REPRODUCED: " in done.stdout and done.returncode == 0, done.stdout + done.stderr
    spec = ArmSpec(pack.reproducer, root, [], "cpu", 0, "suite", {}, 240, 6, tmp_path / "cache")
    suite = run_arm(spec, lambda line: None)
    alone = record(done)
    assert alone["sentinel"] == suite.record["sentinel"] == "BUG_REPRODUCED"
    assert [(c["name"], c["state"]) for c in alone["checks"]] == [
        (c["name"], c["state"]) for c in suite.record["checks"]
    ]
