"""The files of upstream's repository at a commit, from which its tests are run: what wheels lack.

Unlike ``git.commit_tree`` this takes a clone that lacks some contents: each file is compared with its SHA and the whole
listing with the commit's, so that a file may be absent but none can be another.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.tags import Tag

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import within
from reproducers.record.origin import Origin
from reproducers.record.schema import Pack
from reproducers.record.upstream_tests import listed
from reproducers.upstream import pins
from reproducers.upstream.git import commit_tree, git_bytes
from reproducers.upstream.store import Store, Tree

Row = tuple[str, str, str]  # mode, SHA, path


def tests_tree(store: Store, pack: Pack, sha: str, clone: Path | None = None) -> Tree:
    """Upstream's files at the commit, without links, submodules and what lies in hidden folders.

    From the store, else from ``clone``, else from the repository's own address. CannotTestHere when none has it.
    """
    distribution = pack.upstream.distribution

    def fill(target: Path) -> object:
        if clone is not None:
            return _from_clone(clone, sha, target)
        try:
            whole = commit_tree(store, f"https://github.com/{pack.upstream.repo}", sha, distribution)
        except CannotTestHere as error:
            raise CannotTestHere(f"upstream's tests: {error.what}", "run again with --upstream CLONE") from error
        shutil.copytree(whole.path, target, dirs_exist_ok=True, ignore=_hidden_or_link)
        return None

    origin = Origin(kind="made", distribution=distribution, name=f"repository at git {sha}")
    return store.tree("trees", f"tests-{sha}", origin, fill)


def bundled(store: Store, packs: list[Pack], pin_names: list[str], tags: list[Tag]) -> dict[str, Tree]:
    """{store key: tree} of upstream's files at every pin of these names that says its commit, with what they need.

    ``tags``: of the interpreter that will run them.
    """
    trees = []
    for pack in packs:
        named = [pack.pins[name] for name in pin_names if name in pack.pins]
        trees += [tests_tree(store, pack, pin.sha) for pin in named if pin.sha]
        needs = dict.fromkeys(
            name for file in listed(pack.folder.parent).get(pack.number, []) for name in file.cuda_needs
        )
        if named:
            trees += pins.need_parts(store, pins.need_sets(pack, needs), pack.lanes, tags)
    return {tree.path.name: tree for tree in trees}


def _hidden_or_link(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(".") or Path(folder, name).is_symlink()]


def _from_clone(clone: Path, sha: str, target: Path) -> dict[str, Any]:
    """Write the commit's files; returns the paths of those whose content the clone lacks."""
    if not clone.is_dir():
        raise PatchlaneError(f"--upstream {clone}: not a folder", "pass a clone that has the pin's commit")
    commit = git_bytes("cat-file", "commit", sha, cwd=clone)
    if commit.returncode or _sha("commit", commit.stdout) != sha:
        raise CannotTestHere(f"{clone} has no commit {sha}", f"git -C {clone} fetch origin {sha}")
    listing = git_bytes("ls-tree", "-r", "-z", "--full-tree", sha, cwd=clone).stdout
    rows = [_row(line) for line in listing.split(b"\0") if line]
    if not commit.stdout.startswith(b"tree " + _folder_sha(rows).encode() + b"\n"):
        raise PatchlaneError(f"{clone}: its listing of commit {sha} is not the commit's", f"git -C {clone} fsck")
    wanted = [row for row in rows if row[0] in ("100644", "100755") and not _hidden(row[2])]
    asked = "".join(f"{blob}\n" for _, blob, _ in wanted).encode()
    data, place, absent = git_bytes("cat-file", "--batch", cwd=clone, given=asked).stdout, 0, []
    for mode, blob, name in wanted:
        end = data.index(b"\n", place)
        words, place = data[place:end].split(b" "), end + 1
        if len(words) != 3:
            absent.append(name)
            continue
        content = data[place : place + int(words[2])]
        place += int(words[2]) + 1
        if _sha("blob", content) != blob:
            raise PatchlaneError(f"{clone}: {name} is not what its SHA says", f"git -C {clone} fsck")
        path = within(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if mode == "100755" else 0o644)
    return {"absent": absent}


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def _row(line: bytes) -> Row:
    about, name = line.split(b"\t", 1)
    mode, _, sha = about.decode().split(" ")
    return mode, sha, name.decode("utf-8", "surrogateescape")


def _sha(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _folder_sha(rows: list[Row]) -> str:
    """git's SHA of a folder, from the SHAs of all files beneath it."""
    entries, below = list[tuple[bytes, bytes]](), dict[str, list[Row]]()
    for mode, sha, name in rows:
        top, slash, rest = name.partition("/")
        if slash:
            below.setdefault(top, []).append((mode, sha, rest))
        else:
            entries.append(_entry(mode, sha, top))
    entries += [_entry("40000", _folder_sha(inner), top) for top, inner in below.items()]
    return _sha("tree", b"".join(data for _, data in sorted(entries)))


def _entry(mode: str, sha: str, name: str) -> tuple[bytes, bytes]:
    """(what git sorts by, the entry's bytes)."""
    raw = name.encode("utf-8", "surrogateescape")
    return raw + (b"/" if mode == "40000" else b""), f"{mode} ".encode() + raw + b"\0" + bytes.fromhex(sha)
