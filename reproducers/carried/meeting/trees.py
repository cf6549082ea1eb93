"""Upstream's trees as a queue meets them: the files that its patches touch, by their paths in the repository."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import LARGEST
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.importing import found, is_release
from reproducers.carried.meeting.judging import Changes, Read
from reproducers.studies.versions import applying
from reproducers.upstream import index
from reproducers.upstream.git import git_bytes
from reproducers.upstream.pins import SHA
from reproducers.upstream.store import tree_files


@dataclass(frozen=True)
class Tree:
    """A tree by its release or commit: the content of the files that were asked for, the names of all.

    ``wheel``: it lacks what no wheel has. ``sha`` is of a commit of a clone. ``said``: what was read of it.
    """

    label: str
    files: dict[str, bytes]
    names: frozenset[str]
    wheel: bool = False
    sha: str | None = None
    said: str = ""

    def over(self, changes: Changes) -> Read:
        """Reads the tree with these changes upon it."""
        return lambda path: changes[path] if path in changes else self.files.get(path)


def wanted(entries: Iterable[Carried]) -> set[str]:
    """The paths that the patches read or write."""
    return {name for entry in entries for file in entry.diff.files for name in (file.source, file.target) if name}


def tree(upstream: Upstream, name: str, paths: set[str], clone: Path | None, asked: applying.Asked) -> Tree:
    """The tree of a release, tag or SHA: of the clone if one is given, else of the package index.

    PatchlaneError for what the clone has not; CannotTestHere where the index cannot give it, or no clone is given.
    """
    if clone is not None:
        sha = commit(clone, name)
        moving = not sha.startswith(name) and found(clone, f"refs/tags/{name}") is None and not is_release(name)
        return of_commit(clone, sha, f"{name} {sha[:12]}" if moving else name, paths)
    release = name.removeprefix("core_").removeprefix("v")
    if SHA.fullmatch(name) or not is_release(release):
        raise CannotTestHere(f"{name} is no release, and no clone is given", f"--upstream CLONE of {upstream.repo}")
    return of_release(upstream, release, index.release_files(upstream.distribution, release), paths, asked)


def commit(clone: Path, name: str) -> str:
    """The full SHA of a release's tag, a tag, branch or commit. PatchlaneError for one that the clone has not."""
    if (sha := found(clone, name)) is None:
        raise PatchlaneError(f"{clone} has no {name}", f"git -C {clone} fetch, or a name that git log shows")
    return sha


def base(entries: list[Carried], paths: set[str], clone: Path | None, asked: applying.Asked) -> Tree:
    """The tree that a queue was made for."""
    return tree(entries[0].upstream, base_name(entries[0].base, clone), paths, clone, asked)


def base_name(stated: Base, clone: Path | None) -> str:
    """The name by which a base is had: its commit in a clone, where one is known, else its release."""
    return str(stated.sha) if stated.sha and (clone is not None or not stated.release) else str(stated.release)


def of_commit(clone: Path, sha: str, label: str, paths: set[str]) -> Tree:
    """The files of a commit of a clone. CannotTestHere where the clone lacks their content."""
    listed = git_bytes("ls-tree", "-r", "-z", "--full-tree", "--name-only", sha, cwd=clone)
    if listed.returncode:
        said = listed.stderr.decode(errors="replace").strip()
        raise CannotTestHere(f"{clone} has no commit {sha}: {said[:160]}", f"git -C {clone} fetch origin {sha}")
    names = frozenset(listed.stdout.decode(errors="surrogateescape").split("\0")) - {""}
    here = sorted(paths & names)
    asked = "".join(f"{sha}:{name}\n" for name in here).encode(errors="surrogateescape")
    data, place, files = git_bytes("cat-file", "--batch", cwd=clone, given=asked).stdout, 0, dict[str, bytes]()
    for name in here:
        end = data.find(b"\n", place)
        words = data[place:end].split()
        if end < 0 or len(words) != 3:
            raise CannotTestHere(f"{clone} lacks {name} of {sha}", f"git -C {clone} fetch origin {sha}")
        place = end + 1 + int(words[2]) + 1
        files[name] = data[end + 1 : place - 1]
    return Tree(label, files, names, sha=sha)


def of_release(
    upstream: Upstream, release: str, published: dict[str, str], paths: set[str], asked: applying.Asked
) -> Tree:
    """The files of a release as the package index has them; of a large wheel no others are fetched."""
    root = "" if upstream.source_root == "." else f"{upstream.source_root}/"
    seen = set[str]()

    def chosen(names: Iterable[str]) -> set[str]:
        seen.update(names)
        return {path.removeprefix(_missing(root, seen)) for path in paths}

    depth = len(Path(upstream.source_root).parts)
    with applying.laid_out(upstream.distribution, release, published, asked, chosen, depth) as (folder, said):
        names = seen or {name for name, _ in tree_files(folder)}
        above = _missing(root, names)
        files = {path: folder / path.removeprefix(above) for path in paths if path.startswith(above)}
        content = {path: _bytes(file) for path, file in files.items() if file.is_file()}
    return Tree(release, content, frozenset(above + name for name in names), wheel=True, said=said)


def _missing(root: str, names: Iterable[str]) -> str:
    """What paths of the repository have before those of the tree: a wheel lacks the source root, an sdist has it."""
    return "" if not root or any(name.startswith(root) for name in names) else root


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > LARGEST:
        raise PatchlaneError(f"{path.name} has more than {LARGEST} bytes, which no source file has", "leave it out")
    return path.read_bytes()
