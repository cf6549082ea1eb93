"""A bundle carries trees and the engine's requirements to an offline store, whole or not at all."""

import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from toy import named

import reproducers.bundle as verb
from patchlane.base import clock
from patchlane.base.errors import PatchlaneError, StoreError
from patchlane.base.files import file_sha256
from reproducers.record.schema import ROOT
from reproducers.upstream.bundle import install as bundle_install
from reproducers.upstream.bundle import parts as bundle
from reproducers.upstream.store import Store, Tree, record, tree_digest


def made(store, key, files):
    def fill(folder):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text)
        (folder / "link").symlink_to(next(iter(files)))
        (folder / "folder").symlink_to(".")

    return store.tree("trees", key, named(f"toy {key}"), fill)


@pytest.fixture
def parts(tmp_path):
    """Parts of 1,000 bytes of two trees that share a file, and the trees."""
    store = Store(tmp_path / "store")
    noise = os.urandom(3000)
    trees = {key: made(store, key, {"shared.bin": noise, f"{key}/own.py": key.encode()}) for key in ("one", "two")}
    engine = made(store, "engine-x", {"toyengine.py": b"x = 1\n"})
    (tmp_path / "out").mkdir()
    return bundle.write(trees, engine, tmp_path / "out" / "b", 1000, bundle_install.here()), {
        **trees,
        "engine-x": engine,
    }


def install(paths, store):
    command = [sys.executable, "-m", "reproducers.bundle", "install", *map(str, paths)]
    env = {**os.environ, "PATCHLANE_STORE": str(store)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def test_round_trip(parts, tmp_path):
    paths, trees = parts
    assert len(paths) > 2 and all(p.stat().st_size <= 1000 for p in paths)
    assert sum(p.stat().st_size for p in paths) < 6000, "the shared file is carried once"
    done = install(reversed(paths), tmp_path / "there")
    assert done.returncode == 0, done.stderr
    for key, tree in trees.items():
        assert tree_digest(tmp_path / "there" / "trees" / key) == tree.digest
    assert "export PYTHONPATH=" in done.stdout and "engine-x" in done.stdout


@pytest.mark.parametrize("spoil", ["missing part", "altered byte", "no such file", "nothing"])
def test_a_spoilt_bundle_is_refused_with_the_mend(parts, tmp_path, spoil):
    paths, _ = parts
    if spoil == "missing part":
        paths = [*paths[:1], *paths[2:]]
    elif spoil == "altered byte":
        data = bytearray(paths[1].read_bytes())
        data[500] ^= 1
        paths[1].write_bytes(data)
    elif spoil == "no such file":
        paths = [tmp_path / "absent"]
    else:
        paths = []
    done = install(paths, tmp_path / "there")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert not list((tmp_path / "there").glob("trees/*/*"))


def test_a_tree_cannot_leave_its_folder(tmp_path):
    for name, tree in (
        ("../x", {"files": [["../x", False, "0" * 64]], "links": {}}),
        ("a", {"files": [], "links": {"a": "../x"}}),
        ("a", {"files": [], "links": {"a": "/etc"}}),
    ):
        with pytest.raises((ValueError, StoreError), match=repr(name)):
            bundle_install.build(tree, tmp_path, tmp_path / "t")
        assert list(tmp_path.rglob("[ax]")) == []


@pytest.mark.parametrize("which", ["a key up", "an absolute key", "the engine's key", "an object"])
def test_a_bundle_writes_only_inside_the_store(tmp_path, which):
    """Each of these deleted the folder, or brought a file of the host into the store."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("kept")
    key = {"a key up": "../../victim", "an absolute key": str(victim)}.get(which, "k")
    engine = "../../victim" if which == "the engine's key" else "engine-x"
    tree = {"label": "x", "digest": "0" * 64, "files": [], "links": {}}
    if which == "an object":
        tree["files"] = [["taken", False, "../../victim/precious"]]
    index = {"trees": {key: tree, engine: tree | {"files": []}}, "engine": engine}
    (tmp_path / "p").write_bytes(packed(index))
    done = install([tmp_path / "p"], tmp_path / "there")
    assert (done.returncode, "fix: " in done.stderr) == (2, True), done.stderr
    assert [path.name for path in victim.iterdir()] == ["precious"]
    assert not list((tmp_path / "there").rglob("taken"))


def packed(index):
    data, sink = json.dumps(index).encode(), io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        bundle._add(tar, "index.json", data)
    return lzma.compress(sink.getvalue())


@pytest.mark.parametrize(
    "index",
    ["[" * 100_000, "[]", "{}", '{"trees": [], "engine": []}', '{"trees": {"a": 1}, "engine": "a"}', "\ud800"],
    ids=str,
)
def test_an_index_of_another_form_is_refused(tmp_path, index):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        bundle._add(tar, "index.json", index.encode("utf-8", "surrogatepass"))
    (tmp_path / "p").write_bytes(lzma.compress(sink.getvalue()))
    done = install([tmp_path / "p"], tmp_path / "there")
    assert (done.returncode, "fix: " in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_digests_told_apart_from_the_parts_are_compared(parts, tmp_path):
    paths, _ = parts
    digests = [file_sha256(path) for path in paths]
    for given in (",".join(digests[1:]), ",".join([*digests, "0" * 64]), "0" * 64):
        done = install([*paths, "--sha256", given], tmp_path / "there")
        assert (done.returncode, list((tmp_path / "there").glob("trees/*"))) == (2, []), done.stderr
    assert install([*paths, "--sha256", ",".join(reversed(digests)).upper()], tmp_path / "there").returncode == 0


@pytest.mark.parametrize("text", ["", "0", "60X", "-1"])
def test_bad_sizes_and_targets(text):
    with pytest.raises(PatchlaneError):
        bundle.part_size(text)
    with pytest.raises(PatchlaneError):
        bundle.target_tags(text)


def test_sizes():
    assert bundle.part_size("60M") == 60_000_000
    assert bundle.target_tags("cp312-linux-x86_64")[0].interpreter == "cp312"


def test_a_bundle_carries_what_proves_its_trees(tmp_path):
    store = Store(tmp_path / "store")

    def fill(folder):
        (folder / "a.py").write_text("")
        return {"commit": "tree 0"}

    tree, engine = store.tree("trees", "proved", named("toy"), fill), made(store, "engine-x", {"toyengine.py": b""})
    (tmp_path / "out").mkdir()
    paths = bundle.write({"proved": tree}, engine, tmp_path / "out" / "b", 1000, bundle_install.here())
    assert install(paths, tmp_path / "there").returncode == 0
    assert record(tmp_path / "there/trees/proved") == {"commit": "tree 0", "digest": tree.digest, "label": "toy"}


def foreign(target):
    number = sys.version_info[1]
    return target.replace("cpX", f"cp3{number + 1}").replace("cpY", f"cp3{number}")


@pytest.mark.parametrize("target", ["cpX-linux-x86_64", "cpY-linux-sparc", "cpY-plan9-x86_64"])
def test_another_interpreters_bundle_is_refused(tmp_path, target):
    store = Store(tmp_path / "store")
    engine = made(store, "engine-x", {"toyengine.py": b""})
    (tmp_path / "out").mkdir()
    done = install(bundle.write({}, engine, tmp_path / "out" / "b", 1000, foreign(target)), tmp_path / "there")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert foreign(target) in done.stderr and f"--target {bundle_install.here()}" in done.stderr
    assert not list((tmp_path / "there").glob("trees/*"))


def test_an_older_python_is_told_so(parts, tmp_path):
    """Nothing that 3.11 brought is imported before."""
    paths, _ = parts
    code = "import runpy, sys; sys.modules['tomllib'] = None; sys.version_info = (3, 10, 14, 'final', 0);"
    code += "sys.argv[0] = 'bundle'; runpy.run_module('reproducers.bundle', run_name='__main__')"
    command = [sys.executable, "-c", code, "install", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "3.11.4" in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_is_told_with_the_remedy(parts, tmp_path, monkeypatch, capsys):
    def full(*args):
        raise OSError(28, "No space left on device", "/x")

    monkeypatch.setattr(bundle_install, "unpack", full)
    assert bundle_install.main([str(parts[0][0])]) == 2
    assert "TMPDIR=" in capsys.readouterr().err


@pytest.mark.parametrize("pins", [["nope"], ["live", "nope"], [""]])
def test_unknown_pins_are_refused_with_the_known_ones(tmp_path, pins):
    with pytest.raises(PatchlaneError) as caught:
        bundle.collect(Store(tmp_path / "store", offline=True), ["pack05", "pack16"], pins, "cp312-linux-x86_64")
    assert caught.value.remedy == "--pins live,fixed,main,dev"


def test_a_pack_without_any_of_the_pins_is_refused(tmp_path):
    with pytest.raises(PatchlaneError) as caught:
        bundle.collect(Store(tmp_path / "store", offline=True), ["pack16", "pack05"], ["main"], "cp312-linux-x86_64")
    assert caught.value.remedy.startswith("--pins main,live")


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "collect", lambda *args: pytest.fail("collected"))
    (tmp_path / "file").write_text("")
    with pytest.raises(PatchlaneError) as caught:
        verb.create(["pack05"], output=tmp_path / "file")
    assert "--output" in caught.value.remedy


@pytest.mark.parametrize(("kind", "wanted"), [("guard", ["1.0", "1.1"]), ("bug", ["1.0"])])
def test_a_guard_brings_its_fixed_release(toy, monkeypatch, kind, wanted):
    """Without it, its lane could not run on the offline host."""
    pack = toy.pack()
    pins = {"live": pack.pins["live"], "fixed": pack.pins["live"].model_copy(update={"release": "1.1"})}
    guard = pack.model_copy(update={"kind": kind, "pins": pins})
    monkeypatch.setattr("reproducers.record.schema.load_named", lambda names: [guard])
    monkeypatch.setattr(
        "reproducers.upstream.pins.base_tree", lambda store, pack, pin, source: Tree(Path(pin.release), "", "")
    )
    assert list(bundle.collect(toy.store, ["pack07"], ["live"], "cp312-linux-x86_64")) == wanted


def test_each_python_has_requirements_of_its_own(tmp_path, monkeypatch):
    """Although the last of the wheels, by name, is the same for all."""

    def download(command, *limits, **more):
        assert [one for one in command if one.startswith("numpy")] == ["numpy>=2,<2.4"]  # for CPU arms, as validated
        tag = "cp" + command[command.index("--python-version") + 1].replace(".", "")
        for name in (f"core-1-{tag}-{tag}-linux_x86_64", "unidiff-0.7.5-py2.py3-none-any"):
            with zipfile.ZipFile(Path(command[command.index("-d") + 1], f"{name}.whl"), "w") as wheel:
                wheel.writestr(f"{name}.py", "")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(clock, "run", download)
    store, names = Store(tmp_path / "store"), []
    for target in ("cp312-linux-x86_64", "cp311-linux-x86_64"):
        names.append([path.name for path in bundle.engine_requirements(store, target).path.glob("core*.py")])
    assert names == [["core-1-cp312-cp312-linux_x86_64.py"], ["core-1-cp311-cp311-linux_x86_64.py"]]
