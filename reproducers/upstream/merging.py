"""One tree with several packs' patches: each is applied to the pristine files, then git merges the results.

Each pack is validated alone, with zero fuzz and zero offset, and two packs may touch one file. ``git merge-file`` joins
their results through the common pristine file and refuses changes that overlap.
"""

from __future__ import annotations

import difflib
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, json_sha256, temporary
from reproducers.record.schema import Pack
from reproducers.upstream import git, patching
from reproducers.upstream.patching import Hunk
from reproducers.upstream.store import Store, Tree, writable

ABSENT = "absent"  # the image of a file that is not there


@dataclass(frozen=True)
class Applied:
    """One pack's patch on the pristine tree, with each touched file's content after it and digests before and after."""

    pack: Pack
    patch: Path
    files: Mapping[str, bytes]
    images: dict[str, tuple[str, str]]  # path: sha256 before, after

    def hunks(self, merged: Path) -> list[Hunk]:
        """The pack's changed lines as they lie in the merged tree."""
        strip = patching.strip_for(merged, self.pack.upstream.source_root)
        found = patching.hunks(self.patch, strip, after=True)
        return [_moved(hunk, self.files[hunk.path].decode(), (merged / hunk.path).read_text()) for hunk in found]


def image(tree: Path, name: str) -> str:
    """sha256 of a file of a tree, or ``absent``."""
    path = tree / name
    return file_sha256(path) if path.is_file() else ABSENT


def apply_alone(pristine: Tree, pack: Pack, patch: Path | None = None) -> Applied:
    """``patch`` of ``pack``, its fix.patch by default, on the pristine files. PatchlaneError unless it is clean."""
    patch = patch or pack.patch
    strip = patching.strip_for(pristine.path, pack.upstream.source_root)
    files = patching.patched_files(pristine, patch, strip, pack.upstream.source_root)
    images = {name: (image(pristine.path, name), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    return Applied(pack, patch, files, images)


def merge(store: Store, pristine: Tree, applied: Sequence[Applied]) -> Tree:
    """The pristine tree with all of ``applied``. Raises PatchlaneError if two packs change the same lines."""
    if not applied:
        return pristine
    key = json_sha256([pristine.digest, *(patch.images for patch in applied)])

    def fill(target: Path) -> None:
        shutil.copytree(pristine.path, target, symlinks=True, copy_function=writable, dirs_exist_ok=True)
        _merge_files(target, pristine, applied)

    numbers = tuple(patch.pack.number for patch in applied)
    return store.tree("patched", key, pristine.origin.model_copy(update={"stacked_on": numbers}), fill)


def merged_images(pristine: Tree, applied: Sequence[Applied]) -> dict[str, str]:
    """{touched file: sha256} of the tree that ``merge`` gives. Merges anew."""
    with temporary() as scratch:
        names = _merge_files(Path(scratch), pristine, applied)
        return {name: image(Path(scratch), name) for name in names}


def _merge_files(target: Path, pristine: Tree, applied: Sequence[Applied]) -> list[str]:
    """Write every file that ``applied`` touch into ``target``; returns their names."""
    names = sorted({name for patch in applied for name in patch.images})
    for name in names:
        _merge_file(name, target, pristine.path, [patch for patch in applied if name in patch.images])
    return names


def _merge_file(name: str, target: Path, base: Path, applied: list[Applied]) -> None:
    """Fold each pack's version of the file ``name`` over the pristine ``base`` into ``target``."""
    common = (base / name).read_bytes() if (base / name).is_file() else b""
    joined = applied[0].files[name]
    for patch in applied[1:]:
        merged = merge_file(joined, common, patch.files[name])
        if merged is None:
            packs = " and ".join(other.pack.id for other in applied)
            raise PatchlaneError(f"{packs} change the same lines of {name}", f"train without {patch.pack.id}")
        joined = merged
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    (target / name).write_bytes(joined)


def merge_file(left: bytes, common: bytes, right: bytes) -> bytes | None:
    """The merge of two versions of a file over their common one by ``git merge-file``, None if they overlap."""
    with temporary() as place:
        paths = [Path(place, name) for name in ("left", "common", "right")]
        for path, data in zip(paths, (left, common, right), strict=True):
            path.write_bytes(data)
        return git.merged(*paths)


def _moved(hunk: Hunk, alone: str, merged: str) -> Hunk:
    """``hunk`` of the pack's own file at the lines where the merged one has the same text."""
    own_lines, merged_lines = alone.splitlines(), merged.splitlines()
    if own_lines == merged_lines:
        return hunk
    where: dict[int, int] = {}
    for block in difflib.SequenceMatcher(None, own_lines, merged_lines, autojunk=False).get_matching_blocks():
        where |= {block.a + i + 1: block.b + i + 1 for i in range(block.size)}
    lines = [where[n] for n in range(hunk.first, hunk.last + 1) if n in where]
    return Hunk(hunk.name, hunk.path, min(lines), max(lines))
