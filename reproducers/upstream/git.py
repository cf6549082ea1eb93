"""Trees from git: a full SHA from any clone or URL, or the state of an existing checkout.

This module reads objects raw and compares the tree with the requested SHA. So neither a clone's attributes, line-end
or replacement settings nor a damaged object change what is tested.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from reproducers.base.errors import CannotTestHere, PatchlaneError
from reproducers.base.files import within
from reproducers.record.origin import Origin, readable
from reproducers.upstream.store import Store, Tree, tree_digest

_ENV = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0"}
_QUIET = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
_OWN = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


def git(
    *args: str, cwd: Path | None = None, network: bool = False, above: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run git. The caller's settings reach git only for a fetch (``network``).

    git looks for no repository in the folder ``above`` or higher. Raises CannotTestHere if git is not installed.
    """
    done = git_bytes(*args, cwd=cwd, network=network, above=above)
    out, err = (text.decode(errors="surrogateescape") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def git_bytes(
    *args: str, cwd: Path | None = None, network: bool = False, given: bytes = b"", above: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git as ``git`` does; its output is bytes, and ``given`` is its input."""
    inherited = {name: value for name, value in os.environ.items() if network or not name.startswith("GIT_")}
    environment = {**inherited, **_ENV, **({} if network else _QUIET)}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"):
        environment.pop(name, None)
    if above is not None:
        environment["GIT_CEILING_DIRECTORIES"] = str(above)
    try:
        return subprocess.run(["git", *_OWN, *args], cwd=cwd, env=environment, input=given, capture_output=True)
    except FileNotFoundError as error:
        raise CannotTestHere("git is not installed", "install git") from error


def merged(left: Path, base: Path, right: Path) -> bytes | None:
    """The merge of two versions of a file over their base by ``git merge-file``, None if their changes overlap."""
    done = git_bytes("merge-file", "-p", "-q", str(left), str(base), str(right))
    return done.stdout if done.returncode == 0 else None


def commit_tree(store: Store, source: str, sha: str, distribution: str | None = None) -> Tree:
    """The tree at commit ``sha`` of ``source``, a URL or the path of a clone (bare or not).

    Compares a tree that the store has with the text of the commit, which the tree's record keeps. Raises
    PatchlaneError if ``source`` is no repository or ``sha`` no full SHA, CannotTestHere if the commit is out of reach.
    """
    if source.startswith("-") or not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise PatchlaneError(f"{source} at {sha}: not a repository and a full SHA", "correct pins in pack.yaml")

    def fill(target: Path) -> dict[str, Any]:
        local = Path(source).expanduser()
        if local.exists() and not local.is_dir():
            raise PatchlaneError(f"{source}: not a repository", "correct pins in pack.yaml")
        if local.is_dir():
            return _export(local, sha, target)
        if store.offline:
            raise CannotTestHere(f"commit {sha[:12]} is not in the store and the run is offline", _clone(source, sha))
        return _fetch(source, sha, target)

    def proved(path: Path, record: dict[str, Any]) -> bool:
        return "commit" not in record or _is_commit(path, sha, record["commit"], record.get("modules", {}))

    origin = Origin(kind="commit", distribution=distribution, sha=sha)
    return store.tree("trees", sha, origin, fill, proved)


def _clone(url: str, sha: str) -> str:
    """The remedy for a commit that is out of reach."""
    return f"git clone {url} DIR where there is network, then run again with --at {sha} --upstream DIR"


def _fetch(url: str, sha: str, target: Path) -> dict[str, Any]:
    clone = target.parent / "clone.git"
    git("init", "--bare", "-q", str(clone))
    done = git("fetch", "-q", "--depth", "1", "--end-of-options", url, sha, cwd=clone, network=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotTestHere(f"commit {sha[:12]} cannot be fetched: {reason}", _clone(url, sha))
    return _export(clone, sha, target)


def _export(clone: Path, sha: str, target: Path) -> dict[str, Any]:
    """Write the commit's files. Returns their proof: the commit's text and its submodules."""
    if git("cat-file", "-e", f"{sha}^{{commit}}", cwd=clone).returncode:
        raise CannotTestHere(f"{clone} has no commit {sha}", f"git -C {clone} fetch origin {sha}")
    commit = git_bytes("cat-file", "commit", sha, cwd=clone).stdout
    listed = git_bytes("ls-tree", "-r", "-z", "--full-tree", sha, cwd=clone).stdout
    entries = [_entry(row) for row in listed.split(b"\0") if row]
    blobs = _blobs(clone, sorted({entry[1] for entry in entries if entry[0] != "160000"}))
    modules = {}
    for mode, blob, name in entries:
        path = within(target, name)
        if ".git" in path.parts:
            raise PatchlaneError(f"{clone}: commit {sha} has an unsafe file {name!r}", f"git -C {clone} fsck")
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == "160000":
            path.mkdir()
            modules[name] = blob
        elif mode == "120000":
            path.symlink_to(os.fsdecode(blobs.get(blob, b"?")))
        else:
            path.write_bytes(blobs.get(blob, b""))
            path.chmod(0o755 if mode == "100755" else 0o644)
    text = commit.decode("latin-1")
    if not _is_commit(target, sha, text, modules):
        raise PatchlaneError(f"{clone}: commit {sha} has objects that do not match their SHA", f"git -C {clone} fsck")
    return {"commit": text, "modules": modules}


def _entry(row: bytes) -> tuple[str, str, str]:
    """(mode, SHA, path) of a line of ls-tree."""
    about, name = row.split(b"\t", 1)
    mode, _, sha = about.decode().split(" ")
    return mode, sha, os.fsdecode(name)


def _blobs(clone: Path, shas: list[str]) -> dict[str, bytes]:
    """{SHA: content} of the objects that git can read."""
    data = git_bytes("cat-file", "--batch", cwd=clone, given="\n".join([*shas, ""]).encode()).stdout
    contents, place = dict[str, bytes](), 0
    while place < len(data):
        end = data.index(b"\n", place)
        words = data[place:end].decode().split(" ")
        place = end + 1
        if len(words) == 3 and words[2].isdigit():
            contents[words[0]] = data[place : place + int(words[2])]
            place += int(words[2]) + 1
    return contents


def _is_commit(tree: Path, sha: str, commit: str, modules: dict[str, str]) -> bool:
    """Whether ``commit`` is the text whose SHA is ``sha``, and ``tree`` the tree that it names."""
    text = commit.encode("latin-1")
    return _object("commit", text) == sha and text.startswith(b"tree " + _tree_id(tree, modules).encode() + b"\n")


def _object(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _tree_id(folder: Path, modules: dict[str, str], above: str = "") -> str:
    """git's SHA of a folder. ``modules`` are {path: SHA} of its submodules, which are empty folders here."""
    rows = []
    for entry in os.scandir(folder):
        name, path = f"{above}{entry.name}", Path(entry.path)
        if entry.is_symlink():
            mode, sha = "120000", _object("blob", os.fsencode(path.readlink()))
        elif not entry.is_dir():
            mode = "100755" if entry.stat().st_mode & 0o100 else "100644"
            sha = _object("blob", path.read_bytes())
        elif name in modules and not any(path.iterdir()):
            mode, sha = "160000", modules[name]
        else:
            mode, sha = "40000", _tree_id(path, modules, f"{name}/")
        order = os.fsencode(entry.name) + (b"/" if mode == "40000" else b"")
        rows.append((order, f"{mode} ".encode() + os.fsencode(entry.name) + b"\0" + bytes.fromhex(sha)))
    return _object("tree", b"".join(row for _, row in sorted(rows)))


def checkout_tree(store: Store, folder: Path, *, sha: str | None, allow_dirty: bool) -> Tree:
    """The tree of an existing folder, or of commit ``sha`` of a checkout.

    Raises PatchlaneError if the checkout has local changes and ``allow_dirty`` is false or its HEAD is not ``sha``.
    """
    if not folder.is_dir():
        raise PatchlaneError(f"--upstream {folder}: not a folder", "pass a checkout or an unpacked package")
    if git("rev-parse", "--absolute-git-dir", cwd=folder).stdout.strip() == str(folder.resolve()):
        head = sha or git("rev-parse", "HEAD", cwd=folder).stdout.strip()
        return commit_tree(store, str(folder), head)
    top = git("rev-parse", "--show-toplevel", cwd=folder)
    if top.returncode or Path(top.stdout.strip()).resolve() != folder.resolve():
        return _copy(store, folder, Origin(kind="folder", name=readable(folder.name)))
    head = git("rev-parse", "HEAD", cwd=folder).stdout.strip()
    dirty = bool(git("status", "--porcelain", "--untracked-files=no", cwd=folder).stdout.strip())
    if dirty and not allow_dirty:
        raise PatchlaneError(
            f"--upstream {folder}: the checkout has local changes",
            "git stash, or --allow-dirty to test and record it as it is",
        )
    if sha and sha != head and dirty:
        raise PatchlaneError(f"--upstream {folder}: dirty and at {head[:12]}, not {sha[:12]}", f"git checkout {sha}")
    if dirty:
        return _copy(store, folder, Origin(kind="commit", sha=head, dirty=True))
    return commit_tree(store, str(folder), sha or head)


def _copy(store: Store, folder: Path, origin: Origin) -> Tree:
    """A copy in the store, keyed by content: the tested tree cannot change under the test."""
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for path in (Path(at, name) for name in names):
            if not path.is_file():
                raise PatchlaneError(f"--upstream {folder}: {path} is not a file (a pipe or a dead link)", f"rm {path}")

    def fill(target: Path) -> None:
        ignore = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(folder, target, ignore=ignore, dirs_exist_ok=True)

    return store.tree("trees", tree_digest(folder), origin, fill)
