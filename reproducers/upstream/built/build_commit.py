"""Build a commit's tree by a command of the user's: a commit has no compiled library, which a release's wheel has.

The command runs by the shell in a copy of the tree, with the commit's SHA in PATCHLANE_COMMIT. It may add files and
do nothing else: each file of the commit must be there afterwards, byte for byte. What it leaves is the tree under test,
so it should remove what no import needs. The store keeps the result by the commit's tree, the command's text and the
files that this names, beside its log.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections import deque
from pathlib import Path

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.record.origin import Built, File
from reproducers.upstream.store import SKIPPED, Store, Tree, tree_files, writable

COMMIT = "PATCHLANE_COMMIT"
SHOWN = 200  # characters of the log's last line in a reason


def named_files(command: str) -> tuple[File, ...]:
    """The files that the command names by an absolute path: a script that changes makes another build."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PatchlaneError(
            f"--build {command!r}: {error}", "quote it as one argument: --build 'sh /path/build.sh'"
        ) from error
    paths = [Path(word) for word in words]
    return tuple(
        File(name=str(path), sha256=file_sha256(path)) for path in paths if path.is_absolute() and path.is_file()
    )


def ensure(store: Store, tree: Tree, command: str) -> Tree:
    """The tree of a clean commit after ``command`` ran in a copy of it, which the store keeps.

    PatchlaneError for another tree, or where the command changed the commit's own files; CannotTestHere where it fails.
    """
    sha = tree.origin.sha
    if tree.origin.kind != "commit" or sha is None or tree.origin.dirty or tree.origin.stacked_on:
        raise PatchlaneError(
            f"--build builds clean commits, not {tree.origin}", "name a commit, and the clone that has it"
        )
    built = Built(command=command, files=named_files(command), source=tree.digest)
    key = hashlib.sha256(json.dumps(built.model_dump(), sort_keys=True).encode()).hexdigest()
    log = store.root / "built" / f"{key}.log"

    def fill(target: Path) -> None:
        shutil.copytree(tree.path, target, symlinks=True, copy_function=writable, dirs_exist_ok=True)
        _run(command, target, sha, log)
        _forget(target)
        if changed := _changed(tree.path, target):
            raise PatchlaneError(
                f"--build at {sha[:12]} changed {changed}, which is the commit's own",
                "let the command only add files: --build builds a commit, it does not patch one",
            )
        if outside := _outside(target):
            raise PatchlaneError(
                f"--build at {sha[:12]} linked {outside} to a file outside the tree, which no digest covers",
                "let the command copy the file",
            )

    return store.tree("built", key, tree.origin.built_by(built), fill)


def _run(command: str, folder: Path, sha: str, log: Path) -> None:
    with log.open("wb") as sink:
        shell = ["/bin/sh", "-c", command]
        environment = {**os.environ, COMMIT: sha}
        done = clock.run(
            shell, clock.BUILD_S, f"--build at {sha[:12]}", cwd=folder, env=environment, stdout=sink, stderr=sink
        )
    if done.returncode:
        with log.open(errors="replace") as source:
            said = deque((line.strip() for line in source if line.strip()), 1)
        last = said[0][:SHOWN] if said else "it printed nothing"
        what = f"--build ended with {done.returncode} at {sha[:12]}: {last} (log: {log})"
        raise CannotTestHere(what, f"read {log}")


def _forget(target: Path) -> None:
    """Remove version control and bytecode, of which a tree's digest does not tell."""
    for folder, folders, files in os.walk(target):
        for name in SKIPPED.intersection(folders):
            shutil.rmtree(Path(folder, name))
        for name in SKIPPED.intersection(files):
            Path(folder, name).unlink()
        folders[:] = [name for name in folders if name not in SKIPPED]


def _changed(source: Path, target: Path) -> str:
    """The first file of ``source`` that ``target`` has otherwise or not at all; "" where there is none."""
    for name, before in tree_files(source):
        after = target / name
        if before.is_symlink() or after.is_symlink():
            same = before.is_symlink() and after.is_symlink() and before.readlink() == after.readlink()
        else:
            same = after.is_file() and _executable(before) == _executable(after)
            same = same and file_sha256(before) == file_sha256(after)
        if not same:
            return name
    return ""


def _executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


def _outside(target: Path) -> str:
    """The first link of a built tree that leads out of it; "" where there is none."""
    top = target.resolve()
    links = (name for name, path in tree_files(target) if path.is_symlink() and not path.resolve().is_relative_to(top))
    return next(links, "")
