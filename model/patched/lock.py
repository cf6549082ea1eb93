"""What a run trains on, against model/patches.lock before its first step and against its checkpoint on resuming."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from model.patched import lock_file
from model.patched.lock_file import WRITE, Image, Lock
from model.patched.overlay import Overlay
from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256
from reproducers.record.schema import Model
from reproducers.upstream import merging
from reproducers.upstream.store import tree_files

logger = logging.getLogger("model.lock")
CHECK = "python -m model.lock check"
# The store compares a tree with its record when a run starts, and unpacks and patches it anew where they differ.
REBUILD = "start the run again, the store mends a changed tree; where the change is meant, make it a pack"


class RunRecord(Model):
    """What a run's code was: kept in its folder and in each of its checkpoints."""

    schema_version: Literal[1] = 1
    device: str
    needs: list[str]
    lock: Lock
    merged: dict[str, dict[str, Image]]  # distribution: {touched file: sha256 with all packs}


def verify(found: Overlay, path: Path | None = None) -> None:
    """Call before step 0. PatchlaneError unless stack and packs are the lock's and the trees are what they give.

    The error names pack, file and both digests. Every file of a merged tree is compared, patched or not, and every
    upstream module that is already imported must come from those trees.
    """
    wanted, ours = lock_file.read(path), lock_file.of(found)
    expected = Lock(stack=wanted.stack, packs={k: v for k, v in wanted.packs.items() if k in ours.packs})
    rows = lock_file.differences(expected, ours)
    if rows:
        said = "\n  ".join(rows)
        raise PatchlaneError(
            f"not what {lock_file.LOCK.name} has (there, here):\n  {said}", f"{CHECK}; where meant: {WRITE}"
        )
    rows = [row for name in found.trees for row in _tampered(found, name)]
    if rows:
        raise PatchlaneError("the tree to train on is not what merging gives:\n  " + "\n  ".join(rows), REBUILD)
    rows = _imported_elsewhere(found)
    if rows:
        raise PatchlaneError(
            "upstream modules come from elsewhere:\n  " + "\n  ".join(rows),
            "start a new process; uninstall what a .pth file or sitecustomize imports",
        )


def _tampered(found: Overlay, distribution: str) -> list[str]:
    """Files of a merged tree that are neither pristine nor what the packs' patches give."""
    pristine, applied = found.pristine[distribution], found.applied.get(distribution, [])
    wanted = {name: file_sha256(path) for name, path in tree_files(pristine.path)}
    wanted |= merging.merged_images(pristine, applied)
    here = {name: file_sha256(path) for name, path in tree_files(found.trees[distribution].path)}
    rows = []
    for name in sorted(set(wanted) | set(here)):
        ours, theirs = here.get(name, merging.ABSENT), wanted.get(name, merging.ABSENT)
        if ours != theirs:
            who = ", ".join(one.pack.id for one in applied if name in one.images) or "no pack"
            rows.append(f"{distribution} {name} ({who}): is {ours}, merging gives {theirs}")
    return rows


def _imported_elsewhere(found: Overlay) -> list[str]:
    """Imported modules that the overlay has too, and that were loaded from another file."""
    rows, roots = [], [found.root(distribution) for distribution in found.trees]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        for root in roots if file else ():
            stem = root.joinpath(*name.split("."))
            own = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]
            if own and Path(str(file)).resolve() not in [path.resolve() for path in own]:
                rows.append(f"{name} is {file}, not {own[0]}")
    return rows


def _record(found: Overlay) -> RunRecord:
    merged = {
        name: {file: merging.image(tree.path, file) for one in found.applied.get(name, []) for file in one.images}
        for name, tree in found.trees.items()
    }
    labels = [str(tree.origin) for tree in found.needs]
    return RunRecord(device=found.device, needs=labels, lock=lock_file.of(found), merged=merged)


def as_record(found: Overlay) -> dict[str, Any]:
    """For the checkpoint and the run directory, as JSON has it: stack, packs, digests of patches and of files."""
    return _record(found).model_dump(mode="json")


def compare(record: dict[str, Any], found: Overlay, changed_ok: bool = False) -> list[str]:
    """How the code to resume with differs from that of a checkpoint: one line each, none where it is the same.

    PatchlaneError where there are any, unless ``changed_ok``: then they are logged as a warning. Also where the
    checkpoint's record is not one.
    """
    try:
        before = RunRecord.model_validate(record)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise PatchlaneError(
            f"the checkpoint's patch record cannot be read: {faults}", "use another checkpoint"
        ) from None
    now = _record(found)
    rows = lock_file.differences(before.lock, now.lock)
    for name in sorted(set(before.merged) | set(now.merged)):
        one, two = before.merged.get(name, {}), now.merged.get(name, {})
        pairs = [(file, one.get(file, "nothing"), two.get(file, "nothing")) for file in sorted(set(one) | set(two))]
        rows += [f"{name} {file} merged: {old} and {new}" for file, old, new in pairs if old != new]
    if before.device == now.device and before.needs != now.needs:
        rows.append(f"needs: {before.needs} and {now.needs}")
    said = "the checkpoint was written with other code (checkpoint, here):\n  " + "\n  ".join(rows)
    if rows and not changed_ok:
        packs = ",".join(before.lock.packs) or "none"
        raise PatchlaneError(said, f"--patches {packs}, at the checkpoint's commit; or --patches-changed-ok")
    if rows:
        logger.warning("%s", said)
    return rows
