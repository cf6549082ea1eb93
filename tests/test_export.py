"""export: one file, complete, readable, independent of this repository, and the same verdict as in the suite."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.desk.attachment import export, flatten
from reproducers.record.schema import ROOT, load_packs, select
from reproducers.trial.arms import ArmSpec, run_arm
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

PACKS = load_packs()
PEP723 = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
NEED_NVCC = {"mamba-ssm", ("transformer-engine", "pytorch")}  # source distributions only
ADDED = 680  # lines of the probe, of 266 to 673 that a pack takes: waits, ranks and operators of 35
TOY = '''\
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""The toy adds one too many."""

from reproducers import probe

CRASH = probe.Signature("ZeroDivisionError", "division", "toy/__init__.py")


def minimal():
    import toy

    assert toy.add(1, 1) == 2


def reproduce(p: probe.Probe) -> None:
    toy = p.upstream("toy")
    p.error("sum", toy.add(1, 1) - 2, 0.1, reference="2", bug_above=0.9)
    p.attempt("half", lambda: toy.half(1), CRASH)


if __name__ == "__main__":
    probe.main(reproduce, pack=9, package="toy", minimal=minimal)
'''


@pytest.fixture
def toy(tmp_path):
    """A pack whose reproducer needs nothing installed, and a tree that has its bug."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/reproducer.py").write_text(TOY)
    for name, extra in (("buggy", " + 1"), ("sound", "")):
        (tmp_path / name / "toy").mkdir(parents=True)
        (tmp_path / name / "toy/__init__.py").write_text(
            f"def add(a, b):\n    return a + b{extra}\n\n\ndef half(a):\n    return a / 2\n"
        )
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


def result(done):
    """The first word of the last line."""
    return done.stdout.splitlines()[-1].split(":")[0]


@pytest.mark.parametrize("pack", PACKS, ids=lambda p: p.id)
def test_exported_file_of_every_pack(pack):
    text, source = export.render(pack), pack.reproducer.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree) == ast.get_docstring(ast.parse(source))
    for ours in (str(ROOT), "make setup", "-m reproducers", "WatchedProbe", "reproducers import"):
        assert ours not in text
    assert not re.search(r"\b(exec|eval)\(|meta_path", text[text.index(flatten.RULER) :])  # plain code
    assert isinstance(tree.body[-1], ast.If) and export.render(pack) == text
    (header,) = PEP723.finditer(text)
    assert header.start() == 0 and header["type"] == "script"
    script = tomllib.loads("".join(line[2:] for line in header["content"].splitlines(keepends=True)))
    assert script["requires-python"] and [Requirement(r) for r in script["dependencies"]]


@pytest.mark.parametrize("pack", PACKS, ids=lambda p: p.id)
def test_the_reproducers_own_definitions_are_all_there_before_the_probe(pack):
    source, text = pack.reproducer.read_text(), export.render(pack)
    defined = [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    there = [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert there[: len(defined)] == defined


@pytest.mark.parametrize("pack", [p for p in PACKS if "cpu" in p.lanes], ids=lambda p: p.id)
def test_what_the_header_lists_installs_without_a_compiler_for_gpus(pack):
    header, *_ = export.split(export.render(pack))
    script = tomllib.loads("".join(line[2:] for line in header.splitlines(keepends=True)[1:-1]))
    listed = [Requirement(r) for r in script["dependencies"]]
    names = {r.name for r in listed}
    assert ("apache-tvm-ffi" in names) == ("tilelang" in names)  # pip takes one that an older tilelang cannot load
    assert not [str(r) for r in listed if r.name in NEED_NVCC or (r.name, *r.extras) in NEED_NVCC]
    if "megatron-core" in names:
        assert script["requires-python"] == ">=3.12"
    needed = {need.distribution for need in pins.needs_of(pack, pack.pins["live"])} | {pack.upstream.distribution}
    exact = {r.name for r in listed if any(s.operator in ("==", "===") for s in r.specifier)}
    assert exact <= needed | {"apache-tvm-ffi"} and "triton" not in exact


def test_only_what_the_pack_asks_for_and_its_lanes_need_is_in_the_file():
    texts = {pack.id: (export.render(pack), pack.lanes) for pack in PACKS}
    for stand_in, user in (("def _without_extension", "pack03"), ("def _stand_in", "pack15"), ("def _reads", "pack33")):
        assert stand_in in texts[user][0]
        assert not [name for name, (text, lanes) in texts.items() if stand_in in text and "cpu" not in lanes]
    assert "rank = Rank()" in texts["pack01"][0] and "Rank()" not in texts["pack08"][0]
    assert "gpu_launches" not in texts["pack02"][0]  # its own class has a `self.launches`


@pytest.mark.parametrize("pack", PACKS, ids=lambda p: p.id)
def test_what_a_file_has_beside_the_reproducer_is_bounded(pack):
    own = pack.reproducer.read_text().count("\n")
    assert export.render(pack).count("\n") - own <= ADDED


FOLDED = {"pack68", "pack70"}  # a signature that fits a line in the attached file; receipts are of the text as it is


def test_exported_files_are_as_the_formatter_and_isort_leave_them(tmp_path):
    pytest.importorskip("ruff")
    for pack in (pack for pack in PACKS if pack.id not in FOLDED):
        (tmp_path / f"{pack.id}.py").write_text(export.render(pack))
    ruff = [sys.executable, "-m", "ruff"]
    for args in (["check", "--select", "E9,F,I"], ["format", "--check"]):
        done = subprocess.run([*ruff, *args, "--config", "line-length=120", "."], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def exported(toy, tmp_path):
    """The toy's single file."""
    file = tmp_path / "out/toy_export.py"
    file.write_text(export.render(toy))
    return file


def test_toy_runs_alone_and_tells_the_trees_apart(exported, tmp_path):
    for site in (True, False):  # an installed engine must not fill a gap
        buggy = run(exported, "--tree", tmp_path / "buggy", site=site)
        assert buggy.returncode == 0 and result(buggy) == "BUG_REPRODUCED", buggy.stdout + buggy.stderr
    sound = run(exported, "--tree", tmp_path / "sound")
    assert sound.returncode == 0 and result(sound) == "HEALTHY"
    assert "The toy adds one too many." in run(exported, "--help").stdout


def test_toy_runs_its_minimal_code_alone(exported, tmp_path):
    buggy, sound = (run(exported, "--minimal", "--tree", tmp_path / name) for name in ("buggy", "sound"))
    assert buggy.returncode == 1 and "AssertionError" in buggy.stderr
    assert sound.returncode == 0, sound.stderr
    assert run(exported, "--minimal", "--tree", tmp_path).returncode == 77


def test_toy_without_a_tree_uses_the_installed_package(exported, tmp_path):
    assert result(run(exported, isolated=False, path=tmp_path / "buggy")) == "BUG_REPRODUCED"
    nowhere = run(exported)
    assert nowhere.returncode == 77 and result(nowhere) == "CANNOT_TEST" and "--tree DIR" in nowhere.stdout


def test_another_reproducers_package_on_the_path_does_not_get_in(exported, tmp_path):
    (tmp_path / "buggy/reproducers").mkdir()
    (tmp_path / "buggy/reproducers/__init__.py").write_text("raise SystemExit('the wrong package')\n")
    assert result(run(exported, isolated=False, path=tmp_path / "buggy")) == "BUG_REPRODUCED"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Probe) -> None", "Probe, q=CRASH) -> None"),  # read before the probe's names are there
        ("def reproduce", "def judge():\n    pass\n\n\ndef reproduce"),  # the probe has one of this name
        ("import probe", "import probe\nfrom random import Random as Path"),
    ],
)
def test_what_cannot_be_joined_is_refused(toy, old, new):
    toy.reproducer.write_text(TOY.replace(old, new))
    with pytest.raises(PatchlaneError):
        export.render(toy)


@pytest.mark.parametrize(
    ("old", "new", "lacking"), [("# ///", "#", "PEP 723"), ('"""The toy', 'x = """The toy', "docstring")]
)
def test_malformed_reproducers_are_refused(toy, old, new, lacking):
    toy.reproducer.write_text(TOY.replace(old, new))
    with pytest.raises(PatchlaneError, match=lacking):
        export.render(toy)


def test_command_line(tmp_path):
    def verb(*args):
        command = [sys.executable, "-m", "reproducers.export", *args]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    target = tmp_path / "new/pack09.py"
    written, printed = verb("pack09", "-o", str(target)), verb("9")
    assert written.returncode == printed.returncode == 0
    assert target.read_text() == printed.stdout
    for bad in (("pack99",), ("9", "-o", str(tmp_path))):
        refused = verb(*bad)
        assert refused.returncode == 2 and "fix:" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.upstream
@pytest.mark.pack
@pytest.mark.long
def test_pack09_alone_says_what_it_says_in_the_suite(tmp_path):
    for module in ("torch", "triton", "numpy"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    (pack,) = select(["pack09"], PACKS)
    try:
        tree = pins.pin_tree(Store(), pack, pack.pins["live"])
    except CannotTestHere as error:
        pytest.skip(str(error))
    root = patching.import_root(tree.path, pack.upstream.source_root)
    file = tmp_path / "pack09.py"
    file.write_text(export.render(pack))
    done = run(file, "--tree", root)
    assert result(done) == "BUG_REPRODUCED" and done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("liger_kernel 0.7.0 in ")
    spec = ArmSpec(pack.reproducer, root, [], "cpu", 0, "suite", {}, 240, 6, tmp_path / "cache")
    suite = run_arm(spec, lambda line: None)
    alone = re.findall(r"(?m)^\[ *(\w+)\] (.*?)(?:: | -- |$)", done.stdout)
    recorded = [(c.state, c.name) for c in suite.checks]
    assert suite.sentinel == "BUG_REPRODUCED"
    assert [state for state, _ in alone] == [state for state, _ in recorded]
    assert all(name.startswith(start) for (_, start), (_, name) in zip(alone, recorded, strict=True))
