"""The patch lock: what packs give, what a run refuses to start or to resume on."""

import dataclasses
import json
import shutil
import sys
import types
from pathlib import Path

import pytest
from packaging.tags import cpython_tags
from typer.testing import CliRunner

import model.lock as lock_verb
from model.patched import lock, lock_file, overlay, stacks
from patchlane.base.errors import PatchlaneError
from reproducers.record import schema
from reproducers.upstream import pins
from reproducers.upstream.store import Store, Tree

pytestmark = pytest.mark.upstream
DSA = "megatron/core/transformer/experimental_attention_variant/dsa.py"  # packs 01 and 12 change it, among others
UNTOUCHED = "megatron/core/transformer/mlp.py"
OTHER = "f" * 64
RELEASED = stacks.named()


@pytest.fixture(scope="module")
def everything():
    try:
        return overlay.build(Store(), overlay.chosen("all"), "cpu")
    except OSError as reason:
        pytest.skip(f"upstream's releases are neither in the store nor to be fetched: {reason}")


@pytest.fixture(autouse=True)
def nothing_imported(monkeypatch):
    """Other tests of this process may have imported upstream from a pristine tree."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("megatron", "mamba_ssm", "liger_kernel"):
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def altered(tmp_path):
    """The committed lock with (old, new) replaced once, in a file of its own."""

    def write(old, new):
        text = RELEASED.lock.read_text()
        assert old in text
        path = tmp_path / "patches.lock"
        path.write_text(text.replace(old, new, 1))
        return path

    return write


@pytest.fixture
def tampered(tmp_path, everything):
    """The overlay with a private copy of Megatron's merged tree, changed by ``change(folder)``."""

    def make(change):
        whole = everything.trees["megatron-core"]
        copy = Tree(tmp_path / "tree", whole.digest, whole.origin)
        shutil.copytree(whole.path, copy.path)
        change(copy.path)
        return dataclasses.replace(everything, trees={**everything.trees, "megatron-core": copy})

    return make


def refusal(call, *args, **kwargs):
    with pytest.raises(PatchlaneError) as caught:
        call(*args, **kwargs)
    return caught.value.what, caught.value.remedy


def test_the_committed_lock_is_what_the_packs_give(everything):
    assert RELEASED.lock.read_text() == lock_file.render(lock_file.of(everything), RELEASED)
    assert set(lock_file.read(RELEASED).packs) == {pack.id for pack in overlay.chosen("all")}


def test_every_wheel_of_a_release_gives_the_same_lock(everything):
    live = next(pack for pack in schema.load_packs() if pack.number == 12)
    trees = []
    for minor in (11, 12):
        tags = list(cpython_tags((3, minor), platforms=["manylinux_2_28_x86_64"]))
        trees.append(pins.base_tree(Store(), live, live.pins["live"], pins.Source(tags=tags)))
    assert trees[0].digest != trees[1].digest  # two wheels indeed
    locked = lock_file.read(RELEASED).stack["megatron-core"].sources
    assert [lock_file.sources_digest(tree) for tree in trees] == [locked, locked]


def test_the_whole_and_a_part_are_accepted(everything):
    lock.verify(everything)
    lock.verify(overlay.build(Store(), overlay.chosen("5,12"), "cpu"))
    lock.verify(overlay.build(Store(), [], "cpu"))


def test_a_tampered_file_names_packs_and_digests(tampered):
    changed = tampered(lambda root: (root / DSA).write_text((root / DSA).read_text() + "\n"))
    whole = lock_file.file_sha256(changed.trees["megatron-core"].path / DSA)
    said, _ = refusal(lock.verify, changed)
    packs = [patch.pack.id for patch in changed.applied["megatron-core"] if DSA in patch.images]
    assert {"pack01", "pack12"} <= set(packs)
    assert f"megatron-core {DSA} ({', '.join(packs)}): is {whole}, " in said


@pytest.mark.parametrize("change", ["edited", "removed", "added"])
def test_a_file_of_no_pack(tampered, change):
    def act(root):
        if change == "removed":
            (root / UNTOUCHED).unlink()
        else:
            (root / (UNTOUCHED if change == "edited" else "megatron/sitecustomize.py")).write_text("x = 1\n")

    said, _ = refusal(lock.verify, tampered(act))
    assert "(no pack): is " in said
    assert said.count("(no pack)") == 1
    assert ("is absent" in said, "gives absent" in said) == (change == "removed", change == "added")


def test_another_patch_than_the_locks(everything, altered):
    pack12 = lock_file.read(RELEASED).packs["pack12"]
    said, remedy = refusal(lock.verify, everything, altered(pack12.patch, OTHER))
    assert f"pack12 fix.patch: {OTHER} and {pack12.patch}" in said
    assert remedy.startswith("python -m model.lock check;") and remedy.endswith(": python -m model.lock write")
    after = pack12.files[DSA].after
    said, _ = refusal(lock.verify, everything, altered(after, OTHER))
    assert f"pack12 {DSA} after: {OTHER} and {after}" in said


def test_another_release_or_an_unlocked_pack(everything, altered):
    said, _ = refusal(lock.verify, everything, altered("release: 0.19.0", "release: 0.19.1"))
    assert "megatron-core release: 0.19.1 and 0.19.0" in said
    said, _ = refusal(lock.verify, everything, altered("  pack17:\n", "  pack99:\n"))
    assert "pack17 fix.patch: nothing and " in said


def test_a_lock_that_is_none(tmp_path, altered):
    said, remedy = refusal(lock_file.read, RELEASED, altered("schema_version: 1", "schema_version: 2"))
    assert "patches.lock:2: schema_version: " in said
    assert remedy == "python -m model.lock write"
    refusal(lock_file.read, RELEASED, tmp_path / "gone.lock")


def test_upstream_imported_from_elsewhere(everything, monkeypatch, tmp_path):
    module = types.ModuleType("megatron.core.transformer.mlp")
    module.__file__ = str(tmp_path / "mlp.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    said, _ = refusal(lock.verify, everything)
    assert f"{module.__name__} is {module.__file__}, not " in said
    module.__file__ = str(everything.root("megatron-core") / UNTOUCHED)
    lock.verify(everything)


def test_resuming_on_the_same(everything):
    record = json.loads(json.dumps(lock.as_record(everything)))
    assert lock.compare(record, everything) == []
    assert record["merged"]["megatron-core"][DSA] == lock_file.file_sha256(everything.root("megatron-core") / DSA)
    assert lock.compare({**record, "device": "cuda", "needs": ["x"]}, everything) == []


def test_resuming_on_others(everything, caplog):
    record = lock.as_record(everything)
    fewer = overlay.build(Store(), overlay.chosen("1,2,4,5,9,16,17"), "cpu")
    said, remedy = refusal(lock.compare, record, fewer)
    assert f"pack12 fix.patch: {lock_file.read(RELEASED).packs['pack12'].patch} and nothing" in said
    assert f"megatron-core {DSA} merged: " in said
    assert "--patches-changed-ok" in remedy
    assert not caplog.records
    rows = lock.compare(record, fewer, changed_ok=True)
    assert len(rows) == len(said.splitlines()) - 1
    assert "pack12 fix.patch" in caplog.text


@pytest.mark.parametrize("where", ["needs", "merged", "schema_version"])
def test_resuming_on_a_changed_record(everything, where):
    record = lock.as_record(everything)
    if where == "merged":
        record["merged"]["megatron-core"][DSA] = OTHER
    else:
        record[where] = ["tilelang-0"] if where == "needs" else 2
    said, _ = refusal(lock.compare, record, everything)
    assert {"needs": "needs: ['tilelang-0'] and []", "merged": f"merged: {OTHER}"}.get(where, "schema_version") in said


def test_the_verbs(monkeypatch, tmp_path, altered):
    path = altered("release: 0.7.0", "release: 0.7.1")
    committed = RELEASED.lock.read_text()
    monkeypatch.setattr(stacks.Stack, "lock", path)
    result = CliRunner().invoke(lock_verb.app, ["check"])
    assert (result.exit_code, result.output.splitlines()[0]) == (
        1,
        "(lock, packs) liger-kernel release: 0.7.1 and 0.7.0",
    )
    assert "rewritten" in CliRunner().invoke(lock_verb.app, ["write"]).output
    assert Path(path).read_text() == committed
    assert "is current" in CliRunner().invoke(lock_verb.app, ["write"]).output
    assert CliRunner().invoke(lock_verb.app, ["check"]).exit_code == 0
    path.write_text(committed.replace("title: ", "title: not ", 1))
    assert CliRunner().invoke(lock_verb.app, ["check"]).exit_code == 1
