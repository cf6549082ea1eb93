"""Trees from git: a full SHA from any clone or URL, or the state of an existing checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from reproducers.errors import CannotTestHere, PatchlaneError
from reproducers.store import Store, Tree, tree_digest

_ENV = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1"}


def git(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *args], cwd=cwd, env={**os.environ, **_ENV}, capture_output=True, text=True)


def commit_tree(store: Store, source: str, sha: str, label: str) -> Tree:
    """The tree at commit ``sha`` of ``source``, a URL or the path of a clone (bare or not)."""

    def fill(target: Path) -> None:
        local = Path(source).expanduser()
        if local.exists():
            _export(local, sha, target)
        elif store.offline:
            raise CannotTestHere(f"commit {sha[:12]} is not in the store and the run is offline", _clone(source, sha))
        else:
            _fetch(source, sha, target)

    return store.tree("trees", sha, label, fill)


def _clone(url: str, sha: str) -> str:
    """The mend for a commit that is out of reach."""
    return f"git clone {url} DIR where there is network, then run again with --at {sha} --upstream DIR"


def _fetch(url: str, sha: str, target: Path) -> None:
    clone = target.parent / "clone.git"
    git("init", "--bare", "-q", str(clone))
    done = git("fetch", "-q", "--depth", "1", url, sha, cwd=clone)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotTestHere(f"commit {sha[:12]} cannot be fetched: {said}", _clone(url, sha))
    _export(clone, sha, target)


def _export(clone: Path, sha: str, target: Path) -> None:
    if git("cat-file", "-e", f"{sha}^{{commit}}", cwd=clone).returncode:
        raise CannotTestHere(f"{clone} has no commit {sha}", f"git -C {clone} fetch origin {sha}")
    packed = target.parent / "tree.tar"
    done = git("archive", "--format=tar", "-o", str(packed), sha, cwd=clone)
    if done.returncode:
        raise CannotTestHere(f"git archive failed: {done.stderr.strip()}", f"git -C {clone} fsck")
    with tarfile.open(packed) as tar:
        tar.extractall(target, filter="data")


def checkout_tree(store: Store, folder: Path, *, sha: str | None, allow_dirty: bool) -> Tree:
    """The tree of an existing folder, or of commit ``sha`` of a checkout; a dirty one needs ``allow_dirty``."""
    if not folder.is_dir():
        raise PatchlaneError(f"--upstream {folder}: not a folder", "pass a checkout or an unpacked package")
    if git("rev-parse", "--absolute-git-dir", cwd=folder).stdout.strip() == str(folder.resolve()):
        head = sha or git("rev-parse", "HEAD", cwd=folder).stdout.strip()
        return commit_tree(store, str(folder), head, f"git {head}")
    top = git("rev-parse", "--show-toplevel", cwd=folder)
    if top.returncode or Path(top.stdout.strip()).resolve() != folder.resolve():
        return _copy(store, folder, f"folder {folder.name}")
    head = git("rev-parse", "HEAD", cwd=folder).stdout.strip()
    dirty = bool(git("status", "--porcelain", "--untracked-files=no", cwd=folder).stdout.strip())
    if dirty and not allow_dirty:
        raise PatchlaneError(
            f"--upstream {folder}: the checkout has local changes",
            "git stash, or --allow-dirty to test and record it as it is",
        )
    if sha and sha != head and dirty:
        raise PatchlaneError(f"--upstream {folder}: dirty and at {head[:12]}, not {sha[:12]}", f"git checkout {sha}")
    return (
        _copy(store, folder, f"git {head} (dirty)")
        if dirty
        else commit_tree(store, str(folder), sha or head, f"git {sha or head}")
    )


def _copy(store: Store, folder: Path, label: str) -> Tree:
    """A copy in the store, keyed by content, so that what was tested cannot change under the test."""

    def fill(target: Path) -> None:
        ignore = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(folder, target, ignore=ignore, dirs_exist_ok=True)

    return store.tree("trees", tree_digest(folder), label, fill)
