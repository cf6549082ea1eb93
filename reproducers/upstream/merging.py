"""One tree with several packs' patches: each applied by the engine to the pristine tree, then merged as git merges.

Packs are validated alone, with zero fuzz and zero offset; two of them may touch one file. ``git merge-file`` joins
their results through the common pristine file, and refuses what overlaps.
"""

from __future__ import annotations

import difflib
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256
from reproducers.record.schema import Pack
from reproducers.upstream import git, patching
from reproducers.upstream.patching import Hunk
from reproducers.upstream.store import Store, Tree

ABSENT = "absent"  # the image of a file that is not there


@dataclass(frozen=True)
class Applied:
    """One pack's patch on the pristine tree: what each file it touches was and became, alone."""

    pack: Pack
    tree: Tree
    images: dict[str, tuple[str, str]]  # path: sha256 before, after

    def hunks(self, merged: Path) -> list[Hunk]:
        """The pack's changed lines as they lie in the merged tree."""
        strip = patching.strip_for(merged, self.pack.upstream.source_root)
        return [_moved(hunk, self.tree.path, merged) for hunk in patching.hunks(self.pack.patch, strip, after=True)]


def image(tree: Path, name: str) -> str:
    """sha256 of a file of a tree, or ``absent``."""
    path = tree / name
    return file_sha256(path) if path.is_file() else ABSENT


def apply_alone(store: Store, pristine: Tree, pack: Pack) -> Applied:
    """``pack``'s fix.patch on the pristine tree. PatchlaneError unless it applies clean."""
    strip = patching.strip_for(pristine.path, pack.upstream.source_root)
    tree = patching.patched_tree(store, pristine, pack.patch, strip, pack.number)
    names = sorted({hunk.path for hunk in patching.hunks(pack.patch, strip, after=True)})
    return Applied(pack, tree, {name: (image(pristine.path, name), image(tree.path, name)) for name in names})


def merge(store: Store, pristine: Tree, applied: Sequence[Applied]) -> Tree:
    """The pristine tree with all of ``applied``. PatchlaneError where two packs change the same lines."""
    if not applied:
        return pristine
    key = hashlib.sha256("\n".join([pristine.digest, *(one.tree.digest for one in applied)]).encode()).hexdigest()

    def fill(target: Path) -> None:
        shutil.copytree(pristine.path, target, symlinks=True, dirs_exist_ok=True)
        _merge_files(target, pristine, applied)

    numbers = tuple(one.pack.number for one in applied)
    return store.tree("patched", key, pristine.origin.model_copy(update={"stacked_on": numbers}), fill)


def merged_images(pristine: Tree, applied: Sequence[Applied]) -> dict[str, str]:
    """{touched file: sha256} of what ``merge`` gives, merged anew."""
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        names = _merge_files(Path(scratch), pristine, applied)
        return {name: image(Path(scratch), name) for name in names}


def _merge_files(target: Path, pristine: Tree, applied: Sequence[Applied]) -> list[str]:
    """Write every file that ``applied`` touch into ``target``; returns their names."""
    names = sorted({name for one in applied for name in one.images})
    for name in names:
        _merge_file(name, target, pristine.path, [one for one in applied if name in one.images])
    return names


def _merge_file(name: str, target: Path, base: Path, applied: list[Applied]) -> None:
    """Fold each pack's version of the file ``name`` over the pristine ``base`` into ``target``."""
    common = (base / name).read_bytes() if (base / name).is_file() else b""
    joined = (applied[0].tree.path / name).read_bytes()
    for one in applied[1:]:
        merged = merge_file(joined, common, (one.tree.path / name).read_bytes())
        if merged is None:
            who = " and ".join(other.pack.id for other in applied)
            raise PatchlaneError(f"{who} change the same lines of {name}", f"train without {one.pack.id}")
        joined = merged
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).write_bytes(joined)


def merge_file(ours: bytes, common: bytes, theirs: bytes) -> bytes | None:
    """What ``git merge-file`` makes of two versions of a file and what they have in common; None where they overlap."""
    with tempfile.TemporaryDirectory(prefix="patchlane-") as place:
        for name, data in (("ours", ours), ("common", common), ("theirs", theirs)):
            (Path(place) / name).write_bytes(data)
        return git.merged(*(Path(place) / name for name in ("ours", "common", "theirs")))


def _moved(hunk: Hunk, alone: Path, merged: Path) -> Hunk:
    """``hunk`` of the pack's own tree at the lines where the merged tree has the same text."""
    ours, theirs = ((tree / hunk.path).read_text().splitlines() for tree in (alone, merged))
    if ours == theirs:
        return hunk
    where: dict[int, int] = {}
    for block in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        where |= {block.a + i + 1: block.b + i + 1 for i in range(block.size)}
    lines = [where[n] for n in range(hunk.first, hunk.last + 1) if n in where]
    return Hunk(hunk.name, hunk.path, min(lines), max(lines))
