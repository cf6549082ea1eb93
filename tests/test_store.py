"""The store: digests, offline, tampering, concurrency and sudden death."""

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from test_archive import make_zip
from toy import SOURCE, write_tree

from reproducers import index
from reproducers.errors import CannotTestHere, StoreError
from reproducers.store import Store, file_sha256, swap, tree_digest, tree_files, write_atomic

NAME = "toyup-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path):
    """A toy wheel that the faked index serves."""
    return make_zip(tmp_path / NAME, *((f"toyup/m{n}.py", os.urandom(500)) for n in range(40)))


@pytest.fixture
def served(wheel, monkeypatch):
    """{count: downloads so far}; index.download copies the toy wheel."""
    seen = {"count": 0}

    def download(distribution, filename, target, progress):
        seen["count"] += 1
        target.write_bytes(wheel.read_bytes())

    monkeypatch.setattr(index, "download", download)
    return seen


def files(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_fetched_once_and_unpacked(tmp_path, wheel, served):
    store = Store(tmp_path / "s", offline=False)
    one = store.release_tree("toyup", "1.0", NAME, file_sha256(wheel))
    two = store.release_tree("toyup", "1.0", NAME, file_sha256(wheel))
    assert one == two
    assert served["count"] == 1
    assert len(list((one.path / "toyup").iterdir())) == 40
    assert tree_digest(one.path) == one.digest


def test_wrong_digest_is_refused_and_nothing_kept(tmp_path, served):
    store = Store(tmp_path / "s", offline=False)
    with pytest.raises(StoreError, match="pinned is 0000"):
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
    (path / "toyup/m0.py").write_bytes(b"tampered")


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


def test_files_are_named_by_folder_and_links_are_not_followed(tmp_path):
    root = write_tree(tmp_path / "t", dict.fromkeys(["b/x", "b.py", "a/y", "a/.git/HEAD", "__pycache__/z.pyc"], "1"))
    (root / "a" / "link").symlink_to("../b")
    found = tree_files(root)
    assert [name for name, _ in found] == ["a/link", "a/y", "b/x", "b.py"]
    assert all(path == root / name for name, path in found)


def test_digest_ignores_caches_and_time(tmp_path):
    root = write_tree(tmp_path / "t", SOURCE)
    before = tree_digest(root)
    write_tree(root, {"toyup/__pycache__/core.pyc": "x", ".git/HEAD": "x"})
    os.utime(root / "toyup/core.py", (1, 1))
    assert tree_digest(root) == before


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    write_atomic(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "fsync", lambda handle: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomic(tmp_path / "f", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("f", b"old")]


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
    from reproducers import index, store
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
    print(made.release_tree("toyup", "1.0", wheel.name, store.file_sha256(wheel)).digest, flush=True)
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


def test_a_swap_that_fails_puts_the_old_folder_back(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept").write_text("x")
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "absent", tmp_path / "out", tmp_path / "old")
    assert (tmp_path / "out/kept").read_text() == "x" and not (tmp_path / "old").exists()
