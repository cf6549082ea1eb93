"""The store: digests, offline, tampering, concurrency and sudden death."""

import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from archives import make_tar, make_zip
from filelock import FileLock
from toy import SOURCE, named, overwrite, write_tree

from patchlane.base import disk
from patchlane.base.errors import CannotTestHere, PatchlaneError, StoreError
from patchlane.base.files import file_sha256
from reproducers.evidence import receipts
from reproducers.evidence.saving import places
from reproducers.evidence.verification import verify_all
from reproducers.trial.experiment import Request, execute
from reproducers.upstream import index
from reproducers.upstream import store as stores
from reproducers.upstream.store import Seal, Store, tree_digest, tree_files, writable

NAME = "toyup-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path):
    """A toy wheel that the faked index serves."""
    return make_zip(tmp_path / NAME, *((f"toyup/m{n}.py", os.urandom(500)) for n in range(40)))


@pytest.fixture
def served(wheel, monkeypatch):
    """{count: downloads so far}; index.download copies the toy wheel."""
    counter = {"count": 0}

    def download(distribution, filename, target, progress):
        counter["count"] += 1
        target.write_bytes(wheel.read_bytes())

    monkeypatch.setattr(index, "download", download)
    return counter


def files(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_fetched_once_and_unpacked(tmp_path, wheel, served):
    store = Store(tmp_path / "s", offline=False)
    tree = store.release_tree("toyup", "1.0", NAME, file_sha256(wheel))
    assert store.release_tree("toyup", "1.0", NAME, file_sha256(wheel)) == tree
    assert served["count"] == 1
    assert len(list((tree.path / "toyup").iterdir())) == 40
    assert tree_digest(tree.path) == tree.digest


def test_wrong_digest_is_refused_and_nothing_kept(tmp_path, served):
    store = Store(tmp_path / "s", offline=False)
    with pytest.raises(StoreError, match="0" * 64):
        store.release_tree("toyup", "1.0", NAME, "0" * 64)
    assert files(store.root) == []


def test_damaged_artifact_is_fetched_again(tmp_path, wheel, served):
    store, sha = Store(tmp_path / "s", offline=False), file_sha256(wheel)
    store.artifact("toyup", NAME, sha).write_bytes(b"damaged")
    assert file_sha256(store.artifact("toyup", NAME, sha)) == sha
    assert served["count"] == 2


def test_offline(tmp_path, wheel, served, monkeypatch):
    with pytest.raises(CannotTestHere, match="offline"):
        Store(tmp_path / "s", offline=True).artifact("toyup", NAME, file_sha256(wheel))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    with pytest.raises(CannotTestHere, match="offline"):
        Store(tmp_path / "s").artifact("toyup", NAME, file_sha256(wheel))
    assert served["count"] == 0


def change(path):
    overwrite(path / "toyup/m0.py", "tampered")


def add(path):
    (path / "toyup/new.py").write_bytes(b"")


def drop(path):
    (path / "toyup/m0.py").unlink()


def executable(path):
    (path / "toyup/m0.py").chmod(0o755)


def link(path):
    (path / "toyup/m0.py").unlink()
    (path / "toyup/m0.py").symlink_to("m1.py")


@pytest.mark.parametrize("tamper", [change, add, drop, executable, link])
def test_tampered_tree_is_rebuilt(tmp_path, wheel, served, tamper):
    store, sha = Store(tmp_path / "s", offline=False), file_sha256(wheel)
    good = store.release_tree("toyup", "1.0", NAME, sha)
    tamper(good.path)
    assert tree_digest(good.path) != good.digest
    assert store.release_tree("toyup", "1.0", NAME, sha) == good
    assert tree_digest(good.path) == good.digest


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_tree_changed_together_with_its_record_is_made_anew(tmp_path, monkeypatch, kind):
    """The artefact tells, whose digest the pin states."""
    name = NAME if kind == "wheel" else "toyup-1.0.tar.gz"
    files = [("toyup/core.py", b"x = 1\n"), ("toyup/a.py", b"")]
    source = make_zip(tmp_path / name, *files) if kind == "wheel" else make_tar(tmp_path / name, *files)
    monkeypatch.setattr(index, "download", lambda d, f, target, p: target.write_bytes(source.read_bytes()))
    store, sha = Store(tmp_path / "s", offline=False), file_sha256(source)
    good = store.release_tree("toyup", "1.0", name, sha)
    (code,) = good.path.rglob("core.py")
    overwrite(code, "x = 2\n")
    record = good.path.with_name(f"{sha}.json")
    record.write_text(json.dumps({"digest": tree_digest(good.path), "label": str(good.origin)}))
    assert store.release_tree("toyup", "1.0", name, sha) == good
    assert code.read_bytes() == b"x = 1\n"


def test_a_tree_without_its_artefact_serves(tmp_path, wheel, served):
    store, sha = Store(tmp_path / "s", offline=False), file_sha256(wheel)
    good = store.release_tree("toyup", "1.0", NAME, sha)
    (store.root / "artifacts" / sha / NAME).unlink()
    assert Store(store.root, offline=True).release_tree("toyup", "1.0", NAME, sha) == good


def test_a_record_that_cannot_be_read_is_made_anew(tmp_path, wheel, served):
    store, sha = Store(tmp_path / "s", offline=False), file_sha256(wheel)
    good = store.release_tree("toyup", "1.0", NAME, sha)
    for text in ("", "{", "[]", "{}"):
        good.path.with_name(f"{sha}.json").write_text(text)
        assert store.release_tree("toyup", "1.0", NAME, sha) == good


def old(path):
    os.utime(path, (time.time() - 40 * 86400,) * 2)


def test_patched_trees_that_nobody_uses_are_removed(tmp_path):
    store = Store(tmp_path / "s", offline=True)
    trees = {name: store.tree("patched", name, named(name), lambda target: None) for name in ("stale", "used", "new")}
    for name in ("stale", "used"):
        old(store.root / "patched" / f"{name}.json")
    store.tree("patched", "used", named("used"), lambda target: pytest.fail("made again"))
    bytecode = write_tree(store.root / "cache/bytecode", {"stale/x.pyc": "", "interpreter/x.pyc": "", "new/x.pyc": ""})
    old(bytecode / "stale")
    old(bytecode / "interpreter")
    Store(store.root, offline=True)
    assert [name for name, tree in trees.items() if tree.path.exists()] == ["used", "new"]
    assert sorted(path.name for path in bytecode.iterdir()) == ["interpreter", "new"]


def refused(number):
    def call(*args, **more):
        raise OSError(number, os.strerror(number), "/the/path")

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("where", ["mkdir", "mkdtemp", "lock", "copytree"])
def test_what_the_host_refuses_names_the_remedy(tmp_path, monkeypatch, number, where):
    store = Store(tmp_path / "s", offline=True)
    place = {"mkdir": (Path, "mkdir"), "mkdtemp": (tempfile, "mkdtemp"), "lock": (FileLock, "acquire")}

    def fill(target):
        if where == "copytree":
            monkeypatch.setattr(shutil, "copy2", refused(number))
            shutil.copytree(write_tree(tmp_path / "from", {"a": ""}), target / "to", copy_function=shutil.copy2)

    if where in place:
        monkeypatch.setattr(*place[where], refused(number))
    with pytest.raises(PatchlaneError) as caught:
        (Store(tmp_path / "other") if where == "mkdir" else store).tree("trees", "x", named("x"), fill)
    assert "PATCHLANE_STORE=" in caught.value.remedy


def test_a_store_on_a_real_full_disk(tmp_path, wheel, served):
    """A file system of 64 KiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("not allowed to mount")
    try:
        store = Store(disk / "s", offline=False)
        (disk / "filler").write_bytes(bytes(40000))
        with pytest.raises(PatchlaneError) as caught:
            store.release_tree("toyup", "1.0", NAME, file_sha256(wheel))
        assert "PATCHLANE_STORE=" in caught.value.remedy
        (disk / "filler").unlink()
        assert not [path for path in store.root.glob("*/*") if path.is_dir() and "tree" in path.name]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_lock_that_another_process_keeps(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "LOCK_TIMEOUT_S", 0.1)
    store = Store(tmp_path / "s", offline=True)
    with store.lock("trees-x"), pytest.raises(StoreError) as caught:
        store.tree("trees", "x", named("x"), lambda target: None)
    assert caught.value.remedy


def test_a_trees_files_are_read_only_and_a_copy_of_one_is_not(tmp_path):
    """A link is left alone: what it points at is not the tree's."""
    outside = tmp_path / "outside"
    outside.write_text("1")

    def fill(target):
        write_tree(target, SOURCE)
        (target / "toyup/core.py").chmod(0o755)
        (target / "link").symlink_to(outside)

    tree = Store(tmp_path / "s", offline=True).tree("trees", "x", named("toy"), fill)
    modes = {name: path.stat().st_mode & 0o777 for name, path in tree_files(tree.path)}
    assert modes.pop("link") & 0o200 and modes.pop("toyup/core.py") == 0o555 and set(modes.values()) == {0o444}
    copy = shutil.copytree(tree.path, tmp_path / "copy", symlinks=True, copy_function=writable)
    assert all(path.stat().st_mode & 0o200 for _, path in tree_files(copy))
    assert tree_digest(copy) == tree.digest


def test_a_seal_names_a_tree_that_was_changed(tmp_path):
    store = Store(tmp_path / "s", offline=True)
    tree = store.tree("trees", "x", named("toy"), lambda target: write_tree(target, SOURCE) and None)
    seal = Seal([tree])
    assert seal.broken() is None
    os.utime(tree.path / "toyup/core.py")  # touched, not changed
    assert seal.broken() is None
    path = tree.path / "toyup/core.py"
    before = path.stat()
    overwrite(path, path.read_text().replace("0.0", "1.0", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    record = tree.path.with_name("x.json")
    record.write_text(json.dumps({"digest": tree_digest(tree.path), "label": "toy"}))
    assert (seal.broken(), seal.file) == (tree, "toyup/core.py")
    assert store.tree("trees", "x", named("toy"), lambda target: write_tree(target, SOURCE) and None) == tree
    assert tree_digest(tree.path) == tree.digest


def test_files_are_named_by_folder_and_links_are_not_followed(tmp_path):
    root = write_tree(tmp_path / "t", dict.fromkeys(["b/x", "b.py", "a/y", "a/.git/HEAD", "__pycache__/z.pyc"], "1"))
    (root / "a" / "link").symlink_to("../b")
    files = tree_files(root)
    assert [name for name, _ in files] == ["a/link", "a/y", "b/x", "b.py"]
    assert all(path == root / name for name, path in files)


def test_digest_ignores_caches_and_time(tmp_path):
    root = write_tree(tmp_path / "t", SOURCE)
    before = tree_digest(root)
    write_tree(root, {"toyup/__pycache__/core.pyc": "x", ".git/HEAD": "x"})
    os.utime(root / "toyup/core.py", (1, 1))
    assert tree_digest(root) == before


def test_stale_temporary_folders_are_removed(tmp_path, wheel, served):
    store = Store(tmp_path / "s", offline=False)
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead, alive = (store.root / "trees" / f".tmp-{pid}-x" for pid in (gone.pid, os.getpid()))
    dead.mkdir()
    alive.mkdir()
    store.release_tree("toyup", "1.0", NAME, file_sha256(wheel))
    assert not dead.exists()
    assert alive.exists()


CHILD = textwrap.dedent(
    """
    import shutil, sys, time
    from pathlib import Path
    from reproducers.upstream import index, store
    from patchlane.base.files import file_sha256
    root, wheel, log = map(Path, sys.argv[1:4])

    def download(distribution, filename, target, progress):
        with log.open("a") as sink:
            sink.write("x")
        data = wheel.read_bytes()
        with target.open("wb") as sink:
            for start in range(0, len(data), 4096):
                sink.write(data[start : start + 4096])
                sink.flush()
                time.sleep(0.002)

    index.download = download
    print("ready", flush=True)
    made = store.Store(root, offline=False)
    print(made.release_tree("toyup", "1.0", wheel.name, file_sha256(wheel)).digest, flush=True)
    """
)


def child(root, wheel, log):
    command = [sys.executable, "-c", CHILD, str(root), str(wheel), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _fill(root, wheel, start, results):
    index.download = lambda d, f, target, p: (time.sleep(0.1), target.write_bytes(wheel.read_bytes()))
    start.wait()
    results.put(Store(root, offline=False).release_tree("toyup", "1.0", NAME, file_sha256(wheel)).digest)


def test_twenty_processes_fill_one_store(tmp_path, wheel):
    """All get the same good tree; only one tree exists afterwards."""
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    crowd = [context.Process(target=_fill, args=(tmp_path / "s", wheel, start, results)) for _ in range(20)]
    for process in crowd:
        process.start()
    start.set()
    digests = {results.get(timeout=60) for _ in crowd}
    for process in crowd:
        process.join()
    trees = [p for p in (tmp_path / "s/trees").iterdir() if p.is_dir()]
    assert [tree_digest(p) for p in trees] == list(digests)
    assert len(list((tmp_path / "s/artifacts").rglob("*.whl"))) == 1


@pytest.mark.long
def test_sigkill_at_random_moments(tmp_path, wheel):
    """50 kills during fetch and unpacking: what the store then shows is whole, and the next run needs no help."""
    root, chance = tmp_path / "s", random.Random(5)
    reached = 0
    for _ in range(50):
        process = child(root, wheel, tmp_path / "log")
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        reached += bool(process.stdout.read())
        process.wait()
        for artifact in root.glob("artifacts/*/*.whl"):
            assert file_sha256(artifact) == file_sha256(wheel)
        if chance.random() < 0.7:  # start over, or the later kills would find the work done
            for area in ("trees", "artifacts"):
                for path in (root / area).glob("[0-9a-f]*"):
                    path.rename(tmp_path / f"gone-{area}-{path.name}-{chance.random()}")
    assert reached < 45, "the kills came too late to test anything"
    good = Store(root, offline=False)
    process = child(root, wheel, tmp_path / "log")
    digest = process.communicate()[0].split()[-1]
    assert process.returncode == 0
    sha = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert tree_digest(good.root / "trees" / sha) == digest
    assert not [p for p in root.rglob(".tmp-*") if p.is_dir()]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_that_can_only_be_read_serves(tmp_path, monkeypatch, number):
    """Its trees are compared as ever; one that is wanted anew is refused with the remedy."""
    tree = Store(tmp_path / "s").tree("trees", "k", named("toy"), lambda folder: (folder / "a").write_text("x"))

    def refused(*args, **more):
        raise OSError(number, os.strerror(number), "locks")

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    monkeypatch.setattr("os.utime", refused)
    monkeypatch.setattr("reproducers.upstream.store.scratch_folder", refused)
    store = Store(tmp_path / "s", offline=True)
    assert store.tree("trees", "k", named("toy"), lambda folder: pytest.fail("filled")) == tree
    for spoil in (lambda: None, lambda: (tree.path / "a").chmod(0o755)):
        spoil()
        key = "k" if (tree.path / "a").stat().st_mode & 0o100 else "other"
        with pytest.raises(PatchlaneError) as caught:
            store.tree("trees", key, named("toy"), lambda folder: None)
        assert caught.value.remedy == disk.STORE_REMEDY


def test_a_store_whose_path_is_not_utf_8(toy, tmp_path):
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/st\xff"))
    (root / "trees").mkdir(parents=True)
    pack = toy.pack()
    toy.publish()
    shutil.copytree(toy.store.root / "trees", root / "trees", dirs_exist_ok=True)
    store = Store(root, offline=True)
    run = execute(pack, Request(), store, lambda arm, line: None)
    assert run.ruling.verdict == "REPRODUCED_AND_FIXED"
    receipts.write(run, tmp_path / "receipts", "bench", ["pack07"], places(store))
    assert verify_all(tmp_path / "receipts") == {}


def test_a_file_whose_name_is_not_utf_8_has_a_digest(tmp_path):
    (tmp_path / os.fsdecode(b"\xff")).write_text("x")
    (tmp_path / "link").symlink_to(os.fsdecode(b"\xfe"))
    assert len(tree_digest(tmp_path)) == 64


def test_a_pipe_in_a_tree_is_a_difference_and_not_waited_for(tmp_path):
    store = Store(tmp_path / "s")
    tree = store.tree("trees", "k", named("toy"), lambda folder: (folder / "a").write_text("x"))
    os.mkfifo(tree.path / "pipe")
    assert store.tree("trees", "k", named("toy"), lambda folder: (folder / "a").write_text("x")) == tree
    assert not (tree.path / "pipe").exists()
