"""A source-only need is built once a host, and a host that cannot says why."""

import importlib.util
import sys
from pathlib import Path

import pytest
from toy import named, write_tree

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere
from reproducers.record.schema import Build, Need
from reproducers.upstream import pins
from reproducers.upstream.built import build_extension
from reproducers.upstream.store import Store, Tree, tree_digest

HOST = {"python": "cpython", "torch": "2.11.0+cu130", "cuda": "13.0", "abi": True, "home": "/opt/cuda", "g++": "13.2"}
SETUP = """
import os, setuptools
setuptools.setup(name="toyext", version="1", ext_modules=[setuptools.Extension("toyext", ["toyext.c"],
                 define_macros=[("ANSWER", os.environ["TOY_ANSWER"])])])
"""
SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "toyext", 0, -1, 0};
PyMODINIT_FUNC PyInit_toyext(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "answer", ANSWER);
    return made;
}
"""
BUILD = Build(environment={"TOY_ANSWER": "42"}, shims=["cublaslt_shim.c"])


@pytest.fixture
def source(tmp_path):
    root = write_tree(tmp_path / "source", {"setup.py": SETUP, "toyext.c": SOURCE})
    return Tree(root, tree_digest(root), named("toyext 1"))


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(build_extension, "host", lambda: HOST)


def test_it_is_built_once_with_its_shims(source, here, tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    built = build_extension.ensure(store, "toyext 1", BUILD, source, "0" * 64)
    (library,) = built.path.glob("toyext*.so")
    spec = importlib.util.spec_from_file_location("toyext", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.answer == 42 and (built.path / "libcublaslt_shim.so").is_file()
    assert not list(source.path.glob("build")), "the source tree stays as it was"
    monkeypatch.setattr(clock, "run", lambda *a, **k: pytest.fail("built again"))
    assert build_extension.ensure(store, "toyext 1", BUILD, source, "0" * 64) == built


def test_another_host_gets_another_build(source, here, tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    built = build_extension.ensure(store, "toyext 1", BUILD, source, "0" * 64)
    monkeypatch.setattr(build_extension, "host", lambda: HOST | {"torch": "2.12.0+cu130"})
    assert build_extension.ensure(store, "toyext 1", BUILD, source, "0" * 64).path != built.path


def test_a_failed_build_names_the_complaint_and_keeps_the_log(source, here, tmp_path):
    (source.path / "toyext.c").write_text("#include <no_such_header.h>\n")
    store = Store(tmp_path / "store")
    with pytest.raises(CannotTestHere, match=r"no_such_header\.h") as caught:
        build_extension.ensure(store, "toyext 1", BUILD, source, "0" * 64)
    log = Path(caught.value.remedy.removeprefix("read "))
    assert "no_such_header.h" in log.read_text()
    assert not [p for p in (store.root / "built").iterdir() if p.is_dir()], "nothing half-built is left"


def torch_is(monkeypatch, version, cuda):
    facts = {"python": "x", "torch": version, "cuda": cuda, "abi": True}
    monkeypatch.setattr(build_extension, "_asked", lambda: facts)


def test_torch_is_asked_in_a_process_of_its_own_unless_it_is_imported(monkeypatch):
    torch = pytest.importorskip("torch")
    here = build_extension.of_torch()
    assert here["torch"] == torch.__version__ and here["cuda"] == torch.version.cuda
    assert build_extension._asked() == here
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(build_extension, "of_torch", lambda: pytest.fail("asked here"))
    assert build_extension._asked() == here


def test_a_cpu_build_of_torch_cannot_build(monkeypatch):
    torch_is(monkeypatch, "2.13.0+cpu", None)
    with pytest.raises(CannotTestHere, match=r"2\.13\.0\+cpu"):
        build_extension.host()


@pytest.mark.parametrize("absent", ["nvcc", "g++"])
def test_a_missing_tool_is_named(monkeypatch, tmp_path, absent):
    torch_is(monkeypatch, "2.11.0+cu130", "13.0")
    monkeypatch.setattr(build_extension, "cuda_home", lambda: None if absent == "nvcc" else tmp_path)
    monkeypatch.setattr(build_extension.shutil, "which", lambda name: None if name == absent else f"/bin/{name}")
    with pytest.raises(CannotTestHere) as caught:
        build_extension.host()
    assert absent in caught.value.what


def test_a_set_is_joined_with_what_was_built(source, here, tmp_path):
    store = Store(tmp_path / "store")
    base = store.tree("trees", "base", named("base"), lambda t: (t / "toypkg.py").write_text("x = 1\n"))
    need = Need(distribution="toyext", release="1", artifacts={"toyext-1.tar.gz": "0" * 64}, build=BUILD)
    joined = pins._joined(store, "toy", base, [need], [source])
    names = sorted(p.name.split(".")[0] for p in joined.path.iterdir())
    assert names == ["libcublaslt_shim", "toyext", "toypkg"]


def test_needs_of_another_lane_are_left_out():
    everywhere = Need(distribution="a", release="1", artifacts={"a-1.tar.gz": "0" * 64})
    trimmed = Need(distribution="b", release="1", artifacts={"b-1.tar.gz": "1" * 64}, lane="cuda", trim="sm_90")
    whole = trimmed.model_copy(update={"trim": None})
    assert pins.on_lane([everywhere, trimmed], "cpu") == [everywhere]
    assert pins.on_lane([everywhere, trimmed], "cuda") == [everywhere, trimmed]
    assert len({pins.need_set_key(needs) for needs in ([everywhere], [everywhere, trimmed], [everywhere, whole])}) == 3
