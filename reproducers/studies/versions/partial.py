"""The few files of a tree that a patch touches, without the rest of the tree: of a wheel on the index or of a commit.

What is laid out serves to try a patch, not to run: its digest is not compared with the whole tree's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from patchlane.base.errors import CannotTestHere, StoreError
from patchlane.base.files import LARGEST, within
from reproducers.upstream import archive, index
from reproducers.upstream.git import git_bytes

Wanted = Callable[[Iterable[str]], set[str]]  # of the names of all files of a tree those that are asked for


def of_wheel(distribution: str, filename: str, wanted: Wanted, depth: int, folder: Path) -> str:
    """Lay out files of a wheel on the index in an empty folder; returns what was fetched, in words.

    Raises index.NoParts where the index serves no parts, CannotTestHere for what cannot be had, StoreError for a wheel
    that is refused. A file whose CRC is another than the wheel's table states is one that cannot be had.
    """
    with index.parts(distribution, filename) as (wheel, fetched):
        members = archive.listed(wheel)

        def read(name: str) -> bytes:
            if members[name].file_size > LARGEST:
                raise StoreError(f"{filename}: {name} has more than {LARGEST} bytes, which no source file has")
            return wheel.read(members[name])

        laid = _lay_out(members, wanted(members), depth, read, folder)
        what = f"{laid} file{'s'[: laid != 1]} by parts, {fetched() / 2**20:.1f} MiB"
    return f"{what}; each file's CRC was compared, the digest of {filename} was not"


def of_commit(clone: Path, sha: str, wanted: Wanted, depth: int, folder: Path) -> None:
    """Lay out files of a commit of a clone in an empty folder. Raises CannotTestHere if the clone cannot give them."""
    listed = git_bytes("ls-tree", "-r", "-z", "--full-tree", "--name-only", sha, cwd=clone)
    if listed.returncode:
        said = listed.stderr.decode(errors="replace").strip()
        raise CannotTestHere(f"{clone} has no commit {sha}: {said[:160]}", f"git -C {clone} fetch origin {sha}")
    names = [name for name in listed.stdout.decode(errors="surrogateescape").split("\0") if name]

    def read(name: str) -> bytes:
        shown = git_bytes("cat-file", "blob", f"{sha}:{name}", cwd=clone)
        if shown.returncode:
            raise CannotTestHere(f"{clone} lacks {name} of {sha}", f"git -C {clone} fetch origin {sha}")
        return shown.stdout

    _lay_out(names, wanted(names), depth, read, folder)


def _lay_out(names: Iterable[str], wanted: set[str], depth: int, read: Callable[[str], bytes], folder: Path) -> int:
    """Write the wanted files, and make the folders that a patch may add files to; returns how many were written.

    A name at the top of the import path, ``depth`` folders down, is there as a folder or as an empty file, for a patch
    may add none there.
    """
    tops = {tuple(name.split("/"))[: depth + 2] for name in names}
    for top in tops:
        path = within(folder, "/".join(top[: depth + 1]))
        (path if len(top) > depth + 1 else path.parent).mkdir(parents=True, exist_ok=True)
        if len(top) == depth + 1:
            path.touch()
    here = [name for name in names if name in wanted]
    for name in here:
        path = within(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read(name))
    return len(here)
