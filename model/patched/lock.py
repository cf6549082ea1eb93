"""Compare a run's code with its stack's lock before its first step and with its checkpoint when it resumes."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from model.patched import lock_file
from model.patched.lock_file import Image, Lock
from model.patched.overlay import Overlay
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.record.schema import Model
from reproducers.upstream import merging
from reproducers.upstream.store import tree_files

logger = logging.getLogger("model.lock")
CHECK = "python -m model.lock check"
# The store compares a tree with its record when a run starts, and unpacks and patches it anew where they differ.
REBUILD = "start the run again, the store mends a changed tree; make an intended change a pack"


class CodeRecord(Model):
    """A run's code, recorded in its folder and in each of its checkpoints."""

    schema_version: Literal[1] = 1
    device: str
    needs: list[str]
    lock: Lock
    merged: dict[str, dict[str, Image]]  # distribution: {touched file: sha256 with all packs}


def verify(overlay: Overlay, path: Path | None = None) -> None:
    """Compare stack, packs and trees with the lock at ``path`` (default: the committed one), before step 0.

    Raises PatchlaneError that names pack, file and both digests. Every file of a merged tree is compared, patched or
    not, and every upstream module that is already imported must come from these trees.
    """
    stack = overlay.stack
    locked, current = lock_file.read(stack, path), lock_file.of(overlay)
    expected = Lock(stack=locked.stack, packs={k: v for k, v in locked.packs.items() if k in current.packs})
    rows = lock_file.differences(expected, current)
    if rows:
        listed = "\n  ".join(rows)
        raise PatchlaneError(
            f"code differs from {stack.lock.name} (there, here):\n  {listed}",
            f"{f'{CHECK} {stack.option}'.strip()}; if this is intended: {lock_file.write_command(stack)}",
        )
    rows = [row for name in overlay.trees for row in _tampered(overlay, name)]
    if rows:
        raise PatchlaneError(
            "files of the tree to train on are not those that merging gives:\n  " + "\n  ".join(rows), REBUILD
        )
    rows = _imported_elsewhere(overlay)
    if rows:
        raise PatchlaneError(
            "upstream modules come from elsewhere:\n  " + "\n  ".join(rows),
            "start a new process; uninstall what a .pth file or sitecustomize imports",
        )


def _tampered(overlay: Overlay, distribution: str) -> list[str]:
    """Files of a merged tree that differ from the pristine tree with the packs' patches."""
    pristine, applied = overlay.pristine[distribution], overlay.applied.get(distribution, [])
    wanted = {name: _content(path) for name, path in tree_files(pristine.path)}
    wanted |= merging.merged_images(pristine, applied)
    here = {name: _content(path) for name, path in tree_files(overlay.trees[distribution].path)}
    rows = []
    for name in sorted(set(wanted) | set(here)):
        digest, merged = here.get(name, merging.ABSENT), wanted.get(name, merging.ABSENT)
        if digest != merged:
            packs = ", ".join(patch.pack.id for patch in applied if name in patch.images) or "no pack"
            rows.append(f"{distribution} {name} ({packs}): is {digest}, merging gives {merged}")
    return rows


def _content(path: Path) -> str:
    """sha256 of a file; a link, of which a commit's tree has some, by where it leads."""
    return f"link to {path.readlink()}" if path.is_symlink() else file_sha256(path)


def _imported_elsewhere(overlay: Overlay) -> list[str]:
    """Imported modules of the overlay that were loaded from another file."""
    rows, roots = [], [overlay.root(distribution) for distribution in overlay.trees]
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        for root in roots if file else ():
            stem = root.joinpath(*name.split("."))
            own = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]
            if own and Path(str(file)).resolve() not in [path.resolve() for path in own]:
                rows.append(f"{name} is {file}, not {own[0]}")
    return rows


def _record(overlay: Overlay) -> CodeRecord:
    merged = {
        name: {file: merging.image(tree.path, file) for patch in overlay.applied.get(name, []) for file in patch.images}
        for name, tree in overlay.trees.items()
    }
    labels = [str(tree.origin) for tree in overlay.needs]
    return CodeRecord(device=overlay.device, needs=labels, lock=lock_file.of(overlay), merged=merged)


def as_record(overlay: Overlay) -> dict[str, Any]:
    """JSON for the checkpoint and the run directory: stack, packs, digests of patches and of files."""
    return _record(overlay).model_dump(mode="json")


def compare(record: dict[str, Any], overlay: Overlay, changed_ok: bool = False) -> list[str]:
    """Differences between a checkpoint's code, ``record``, and the code to resume with, one line each.

    Raises PatchlaneError if there are any, unless ``changed_ok``: then they are logged as a warning. Raises it too if
    ``record`` cannot be read.
    """
    try:
        before = CodeRecord.model_validate(record)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise PatchlaneError(
            f"the checkpoint's patch record cannot be read: {faults}", "use another checkpoint"
        ) from None
    now = _record(overlay)
    rows = lock_file.differences(before.lock, now.lock)
    for name in sorted(set(before.merged) | set(now.merged)):
        old, new = before.merged.get(name, {}), now.merged.get(name, {})
        pairs = [(file, old.get(file, "nothing"), new.get(file, "nothing")) for file in sorted(set(old) | set(new))]
        rows += [f"{name} {file} merged: {was} and {now_is}" for file, was, now_is in pairs if was != now_is]
    if before.device == now.device and before.needs != now.needs:
        rows.append(f"needs: {before.needs} and {now.needs}")
    message = "the checkpoint was written with other code (checkpoint, here):\n  " + "\n  ".join(rows)
    if rows and not changed_ok:
        packs = ",".join(before.lock.packs) or "none"
        raise PatchlaneError(message, f"--patches {packs}, at the checkpoint's commit; or --patches-changed-ok")
    if rows:
        logger.warning("%s", message)
    return rows
