"""Files changed as one: whatever call of the system a process dies at, the next one finds the old or the new state."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from toy import write_tree

from patchlane.applied import transaction
from patchlane.applied.transaction import change, locked, unchanged
from patchlane.base.errors import PatchlaneError
from patchlane.patches.state import FOLDER

BEFORE = {"toy/a.py": "a", "toy/b.py": "b", "toy/__pycache__/a.x.pyc": "of a", "other.py": "c"}
CHANGES = {"toy/a.py": b"new a", "toy/b.py": None, "toy/deep/er/d.py": b"d", "toy/__pycache__/a.x.pyc": None}
AFTER = {"toy/a.py": "new a", "toy/deep/er/d.py": "d", "other.py": "c"}
CALLS = [(Path, "replace"), (Path, "unlink"), (Path, "write_bytes"), (os, "link"), (os, "fsync"), (Path, "rmdir")]


def files(root):
    inner = (path for path in root.rglob("*") if path.is_file() and FOLDER not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_text() for path in inner}


def folders(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir()}


def back(root):
    """The changes that take all of it back, as a caller asks for them."""
    state = unchanged(root)
    return {
        name: transaction.kept(root, name, one.before) if one.before else None for name, one in state.changes.items()
    }


def apply(root):
    with locked(root):
        change(root, CHANGES, ("pack07",))


def revert(root):
    with locked(root):
        change(root, back(root), ())


@pytest.fixture
def root(tmp_path):
    return write_tree(tmp_path / "site", BEFORE)


def test_there_and_back_leaves_nothing(root):
    stats = {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in root.rglob("*") if path.is_file()}
    dirs = folders(root)
    apply(root)
    assert files(root) == AFTER and unchanged(root).packs == ("pack07",)
    revert(root)
    assert files(root) == BEFORE and folders(root) == dirs
    assert {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in stats} == stats


class Killed(BaseException):
    """The process is dead: nothing of it changes a file any more."""


def dies_at(number, act):
    """Whether a process that is killed before its ``number``-th call that changes a file was not done."""
    left = [number]

    def counted(real):
        def call(*args, **more):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CALLS:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("linked", [True, pytest.param(False, marks=pytest.mark.rest)])
def test_a_killed_call_leaves_the_old_or_the_new_state(tmp_path, monkeypatch, linked):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # counted all the same; a disk takes its time
    if not linked:
        monkeypatch.setattr("os.link", refused(errno.EPERM))
    seen, number = set(), 0
    while True:
        root = write_tree(tmp_path / str(number), BEFORE)
        killed = dies_at(number, lambda root=root: apply(root))
        assert files(root).keys() <= BEFORE.keys() | AFTER.keys()
        assert all(text in (BEFORE.get(name), AFTER.get(name)) for name, text in files(root).items())
        with locked(root):
            assert files(root) in (BEFORE, AFTER)
        seen.add(files(root) == AFTER)
        apply(root)
        assert files(root) == AFTER
        killed_back = dies_at(number, lambda root=root: revert(root))
        with locked(root):
            assert files(root) in (BEFORE, AFTER)
        if files(root) == AFTER:
            revert(root)
        assert files(root) == BEFORE and not (root / FOLDER).exists() and "toy/deep" not in folders(root)
        if not killed and not killed_back:
            break
        number += 1
    assert number > 12 and seen == {True, False}


def refused(code):
    def call(*args, **more):
        raise OSError(code, os.strerror(code), "x")

    return call


@pytest.mark.parametrize(("owner", "name"), [(Path, "write_bytes"), (os, "fsync")])
def test_a_full_disk_changes_nothing(root, monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, refused(errno.ENOSPC))
    with pytest.raises(PatchlaneError) as error:
        apply(root)
    assert files(root) == BEFORE and "df -h" in error.value.remedy
    monkeypatch.undo()
    apply(root)
    assert files(root) == AFTER


def test_a_second_call_at_the_same_time_is_refused(root):
    handle = os.open(root, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(PatchlaneError) as error:
        apply(root)
    os.close(handle)
    assert files(root) == BEFORE and error.value.remedy
    apply(root)


def test_a_folder_that_may_not_be_written_is_refused(root, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PatchlaneError) as error:
        apply(root)
    assert files(root) == BEFORE and "ls -ld" in error.value.remedy


def test_a_file_that_was_changed_since_is_not_overwritten(root):
    apply(root)
    (root / "toy" / "a.py").write_text("mine")
    for act in (unchanged, revert):
        with pytest.raises(PatchlaneError) as error:
            act(root)
        assert str(root / "toy" / "a.py") in error.value.what and FOLDER in error.value.remedy
    assert files(root) == AFTER | {"toy/a.py": "mine"}


def test_a_second_change_keeps_the_first_state(root):
    apply(root)
    write_tree(root, {"toy/__pycache__/a.y.pyc": "of new a"})
    with locked(root):
        change(
            root, {"toy/a.py": b"newer a", "other.py": b"new c", "toy/__pycache__/a.y.pyc": None}, ("pack07", "pack08")
        )
    assert files(root) == AFTER | {"toy/a.py": "newer a", "other.py": "new c"}
    revert(root)
    assert files(root) == BEFORE and not (root / FOLDER).exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 2}', '{"schema_version": 1, "changes": {"../x": {}}}'])
def test_a_damaged_state_is_refused(root, text):
    write_tree(root, {f"{FOLDER}/state.json": text})
    with pytest.raises(PatchlaneError) as error:
        apply(root)
    assert files(root) == BEFORE and error.value.remedy
