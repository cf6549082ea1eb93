"""The files that a patch touches, as pinned and as patched, from the store; nothing is fetched."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from reproducers.base.errors import PatchlaneError
from reproducers.desk.patches.trees import touched, tree_of
from reproducers.desk.rules.case import Case
from reproducers.desk.text.lookups import again
from reproducers.upstream import patching
from reproducers.upstream.patching import ApplyClass


@dataclass
class Applied:
    """How a patch meets its pin: class and git's words, and the touched files before and after."""

    kind: ApplyClass
    said: str
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)


def applied(case: Case, name: str) -> Applied | str:
    """The pin's patch on the files it touches, or why that cannot be said here. Worked out once a pin."""
    key = f"applied {name}"
    if key not in case.cache:
        tree = tree_of(case.pack, case.pack.pins[name], case.store)
        run = again(case.pack, sorted(case.pack.lanes)[0], name).partition(",")[0]
        missing = f"{case.pack.pins[name].origin} is not in the store: {run}"
        case.cache[key] = _apply(case, name, tree) if tree else missing
    found: Applied | str = case.cache[key]
    return found


def _apply(case: Case, name: str, tree: Path) -> Applied:
    patch, root = case.patches[name], case.pack.upstream.source_root
    strip = patching.strip_for(tree, root)
    below = [_stacked(case, number) for number in case.pack.pins[name].stacked_on]
    try:
        sets = [patching.files(path) for path in (*below, patch)]
    except PatchlaneError as error:
        return Applied(ApplyClass.CONFLICT, error.what)
    paths = sorted({path for files in sets for path in touched(files, strip)})
    with tempfile.TemporaryDirectory(prefix="patchlane-lint-") as scratch:
        copy = Path(scratch)
        for path in paths:
            if (tree / path).is_file():
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(tree / path, copy / path)
        for base in below:
            patching.apply(copy, base, strip)
        before = _read(copy, touched(sets[-1], strip))
        found = patching.classify(copy, patch, strip)
        if found.kind is not ApplyClass.CLEAN:
            return Applied(found.kind, found.message, before)
        patching.apply(copy, patch, strip)
        return Applied(found.kind, found.message, before, _read(copy, touched(sets[-1], strip)))


def _stacked(case: Case, number: int) -> Path:
    """The patch of another pack beneath this one; it may lie beside a copy of the pack or among the project's."""
    found = next(case.pack.folder.parent.glob(f"{number:02d}_*/fix.patch"), None)
    if found is None:
        raise PatchlaneError(f"{case.pack.id} is stacked on pack {number:02d}, which has none", "git status")
    return found


def _read(root: Path, paths: list[str]) -> dict[str, str]:
    return {path: (root / path).read_bytes().decode() for path in paths if (root / path).is_file()}
