"""The files that a patch touches, as pinned and as patched. They come from the store; nothing is fetched."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, json_sha256, temporary
from reproducers.desk.patches.trees import touched, tree_of
from reproducers.desk.rules.case import Case
from reproducers.desk.text.lookups import again
from reproducers.upstream import patching
from reproducers.upstream.patching import ApplyClass


@dataclass
class PatchedFiles:
    """The files that a patch touches, before and after it, and how it applied to its pin, with git's words."""

    kind: ApplyClass
    message: str
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)


_clean: dict[str, PatchedFiles] = {}  # by the content of patches and files; shared by all who ask


def applied(case: Case, name: str) -> PatchedFiles | str:
    """The pin's patch on the files it touches, or why this host cannot tell. Worked out once a pin."""
    key = f"applied {name}"
    if key not in case.cache:
        tree = tree_of(case.pack, case.pack.pins[name], case.store)
        run = again(case.pack, sorted(case.pack.lanes)[0], name).partition(",")[0]
        missing = f"{case.pack.pins[name].origin} is not in the store: {run}"
        case.cache[key] = _apply(case, name, tree) if tree else missing
    files: PatchedFiles | str = case.cache[key]
    return files


def _apply(case: Case, name: str, tree: Path) -> PatchedFiles:
    patch, root = case.patches[name], case.pack.upstream.source_root
    strip = patching.strip_for(tree, root)
    below = [_stacked(case, number) for number in case.pack.pins[name].stacked_on]
    try:
        sets = [patching.files(path) for path in (*below, patch)]
    except PatchlaneError as error:
        return PatchedFiles(ApplyClass.CONFLICT, error.what)
    paths = sorted({path for files in sets for path in touched(files, strip)})
    key = json_sha256(
        [
            strip,
            [file_sha256(p) for p in (*below, patch)],
            {p: file_sha256(tree / p) for p in paths if (tree / p).is_file()},
        ]
    )
    if key not in _clean:
        files = _tried(tree, paths, below, patch, strip, sets[-1])
        if files.kind is not ApplyClass.CLEAN:
            return files  # its message names files where they are
        _clean[key] = files
    return _clean[key]


def _tried(tree: Path, paths: list[str], below: list[Path], patch: Path, strip: int, own: Any) -> PatchedFiles:
    """As ``applied``, on copies of the files at ``paths``; ``own``: the files of the patch."""
    with temporary() as scratch:
        copy = Path(scratch)
        for path in paths:
            (copy / path).parent.mkdir(parents=True, exist_ok=True)  # a new file's place is patch-scope's to judge
            if (tree / path).is_file():
                shutil.copyfile(tree / path, copy / path)
        for base in below:
            patching.apply(copy, base, strip)
        before = _read(copy, touched(own, strip))
        try:
            fit = patching.classify(copy, patch, strip)
        except PatchlaneError as error:
            return PatchedFiles(ApplyClass.CONFLICT, error.what, before)
        if fit.kind is not ApplyClass.CLEAN:
            return PatchedFiles(fit.kind, fit.message, before)
        patching.apply(copy, patch, strip)
        return PatchedFiles(fit.kind, fit.message, before, _read(copy, touched(own, strip)))


def _stacked(case: Case, number: int) -> Path:
    """fix.patch of the pack that this one is stacked on; it lies beside this pack."""
    patch = next(case.pack.folder.parent.glob(f"{number:02d}_*/fix.patch"), None)
    if patch is None:
        raise PatchlaneError(f"{case.pack.id} is stacked on pack {number:02d}, which has none", "git status")
    return patch


def _read(root: Path, paths: list[str]) -> dict[str, str]:
    return {path: (root / path).read_bytes().decode() for path in paths if (root / path).is_file()}
