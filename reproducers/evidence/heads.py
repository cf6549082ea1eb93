"""The heads of the chains of receipts, kept in ``manifest.yaml``, so that a lost or exchanged receipt is seen.

A chain of digests shows that one of its links was altered, never that its end is gone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from reproducers.base.errors import PatchlaneError
from reproducers.evidence.shelf import every
from reproducers.evidence.verification import checked
from reproducers.record.entry import Chain, read_chains


def heads(root: Path) -> dict[str, Chain]:
    """{folder: the chain of its receipts}."""
    found: dict[str, list[Path]] = {}
    for path in every(root):
        found.setdefault(path.parent.name, []).append(path)
    return {folder: Chain(sha256=_digest(paths), names=[p.stem for p in paths]) for folder, paths in found.items()}


def _digest(paths: list[Path]) -> str:
    lines = [f"{path.name} {checked(path).sha256}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def lost(manifest: Path, root: Path, source: Path | None = None) -> list[str]:
    """What the manifest names and neither ``root`` nor ``source`` holds as it was, a line a folder with the remedy."""
    rows = []
    for folder, entry in read_chains(manifest).items():
        names = [Path(folder, f"{name}.json") for name in entry.names]
        paths = [source / name if source and not (root / name).is_file() else root / name for name in names]
        gone = [path.stem for path in paths if not path.is_file()]
        remedy = f"git checkout -- {root.name}/{folder}"
        if gone:
            count = f"{len(gone)} receipt{'s' * (len(gone) > 1)} that the manifest names"
            rows.append(f"{root.name}/{folder}: missing: {count}: {', '.join(gone)}; fix: {remedy}")
        elif _digest(paths) != entry.sha256:
            rows.append(f"{root.name}/{folder}: its receipts are not those that the manifest has; fix: {remedy}")
    return rows


def refuse_loss(manifest: Path, root: Path, source: Path | None) -> None:
    """PatchlaneError when a receipt that the manifest names is gone and ``source``, to be imported, lacks it too."""
    if rows := lost(manifest, root, source):
        raise PatchlaneError("\n".join(rows), "--accept, if they are to be forgotten")
