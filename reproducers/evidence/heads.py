"""The heads of the chains of receipts, kept in ``manifest.yaml``: they show that a receipt was lost or exchanged.

A chain of digests shows that a link was altered, never that its end is gone. Mutation scores and records of upstream's
tests are named with them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from reproducers.base.errors import PatchlaneError, from_git
from reproducers.base.files import KEY, file_sha256, within
from reproducers.base.wording import count
from reproducers.evidence.shelf import kept
from reproducers.record.entry import MEND, Chain, read_chains


def heads(root: Path) -> dict[str, Chain]:
    """{folder: the chain of its receipts}."""
    chains: dict[str, list[Path]] = {}
    for path in kept(root):
        chains.setdefault(path.parent.name, []).append(path)
    return {folder: Chain(sha256=_digest(paths), names=[p.stem for p in paths]) for folder, paths in chains.items()}


def _digest(paths: list[Path]) -> str:
    lines = [f"{path.name} {file_sha256(path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def lost(manifest: Path, root: Path, source: Path | None = None) -> list[str]:
    """A line with its remedy for each folder whose receipts, ``source`` included, are not those of the manifest.

    One line for a manifest that does not tell which they were. Where there is no receipt yet it may be missing.
    """
    try:
        chains = read_chains(manifest)
    except PatchlaneError as error:
        first = not manifest.exists() and not kept(root)
        return [] if first else [f"{error.what}; fix: {MEND}"]
    rows = []
    for folder, entry in chains.items():
        paths = [within(within(root, folder, KEY), name, KEY).with_name(f"{name}.json") for name in entry.names]
        paths = [source / path.relative_to(root) if source and not path.is_file() else path for path in paths]
        gone = [path.stem for path in paths if not path.is_file()]
        remedy = from_git(f"{root.name}/{folder}")
        if gone:
            number = count(len(gone), "receipt")
            rows.append(f"{root.name}/{folder}: missing {number} of the manifest: {', '.join(gone)}; fix: {remedy}")
        elif _digest(paths) != entry.sha256:
            rows.append(f"{root.name}/{folder}: its receipts differ from the manifest's; fix: {remedy}")
    return rows


def refuse_loss(manifest: Path, root: Path, source: Path | None) -> None:
    """Raises PatchlaneError if a receipt of the manifest is neither in ``root`` nor in ``source``, the import."""
    if rows := lost(manifest, root, source):
        raise PatchlaneError("\n".join(rows), "--accept, to forget them")
