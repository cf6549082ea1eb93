"""The heads of the chains of receipts, kept in ``manifest.yaml``: they show that a receipt was lost or exchanged.

A chain of digests shows that a link was altered, never that its end is gone. Mutation scores and records of upstream's
tests are named with them, and the files that other verbs generate.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path, PurePath

from patchlane.base.errors import PatchlaneError, StoreError, from_git
from patchlane.base.files import KEY, file_sha256, within
from patchlane.base.wording import count
from reproducers.evidence.shelf import WITHOUT_LOG, kept
from reproducers.kept import archive
from reproducers.record import engine, entry
from reproducers.record.entry import MEND, Chain, read_chains
from reproducers.record.schema import ROOT
from reproducers.upstream.git import git

GENERATED = {  # by verbs that need more than packs and receipts, so that their digests are kept: each with its command
    "packs/fingerprints.json": "python -m reproducers.audit --write",
    "docs/benchmarks.md": "python -m model.receipt table > docs/benchmarks.md",
    "docs/stacks.md": "python -m model.lock page",
    "model/patches*.lock": "python -m model.lock write",
}


def heads(root: Path) -> dict[str, Chain]:
    """{folder: the chain of its receipts}."""
    chains: dict[str, list[Path]] = {}
    for path in kept(root):
        chains.setdefault(path.parent.name, []).append(path)
    return {folder: _chain(root / folder, paths) for folder, paths in chains.items()}


def _chain(folder: Path, paths: list[Path]) -> Chain:
    held = archive.heads(folder)
    return Chain(sha256=_digest(paths), names=[path.stem for path in paths], **({"archive": held[-1]} if held else {}))


def _digest(paths: list[Path]) -> str:
    lines = [f"{path.name} {archive.sha256(path)}\n" for path in paths]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digests(root: Path) -> dict[str, str]:
    """{file that another verb generates: its digest} of the checkout at ``root``."""
    paths = sorted(path for name in GENERATED for path in root.glob(name))
    return {path.relative_to(root).as_posix(): file_sha256(path) for path in paths}


def regenerated(root: Path, stated: dict[str, str]) -> list[str]:
    """A line with its remedy for each generated file that is not the one whose digest the manifest states."""
    now, rows = digests(root), []
    for name in sorted({*now, *stated}):
        if now.get(name) != stated.get(name):
            command = next((GENERATED[each] for each in GENERATED if PurePath(name).match(each)), f"rm {name}")
            said = "is not the one that the manifest names" if name in now else "is missing"
            rows.append(f"{name} {said}; fix: {command} && python -m reproducers.manifest refresh --no-import")
    return rows


def proved(root: Path) -> frozenset[str]:
    """Digests of the receipts that the manifest of the checkout's last commit names and this very code has proved.

    None of a folder in which one of them was altered or is gone, and none where there is no commit.
    """
    done = git("show", "HEAD:./manifest.yaml", cwd=ROOT)
    verifier, chains = entry.proved(done.stdout) if done.returncode == 0 else (None, {})
    if verifier != engine.digest(engine.VERIFIER):
        return frozenset()
    known = set[str]()
    for folder, chain in chains.items():
        place = within(root, folder, KEY)
        paths = [within(place, name, KEY).with_name(f"{name}.json") for name in chain.names]
        with contextlib.suppress(StoreError):  # of a damaged archive all is proved anew
            held = archive.heads(place)
            if all(map(archive.exists, paths)) and _digest(paths) == chain.sha256:
                known.update(map(archive.sha256, paths))
                number = held.index(chain.archive) + 1 if chain.archive in held else 0
                known.update(member.sha256 for member in archive.members(place)[:number])
    return frozenset(known)


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
    for folder, chain in chains.items():
        place, remedy = within(root, folder, KEY), from_git(f"{root.name}/{folder}")
        try:
            held = archive.heads(place)
        except StoreError as error:
            rows.append(f"{error.what}; fix: {error.remedy}")
            continue
        if chain.archive not in (None, *held):
            said = "is not the one of the manifest" if held else "is missing"
            rows.append(f"{root.name}/{folder}: its archive {said}; fix: {remedy}")
        paths = [within(place, name, KEY).with_name(f"{name}.json") for name in chain.names]
        paths = [source / path.relative_to(root) if source and not archive.exists(path) else path for path in paths]
        gone = [path.stem for path in paths if not archive.exists(path)]
        if gone:
            number = count(len(gone), "receipt")
            rows.append(f"{root.name}/{folder}: missing {number} of the manifest: {', '.join(gone)}; fix: {remedy}")
        elif _digest(paths) != chain.sha256:
            rows.append(f"{root.name}/{folder}: its receipts differ from the manifest's; fix: {remedy}")
    return rows


def unnamed(manifest: Path, root: Path) -> list[str]:
    """A line for each record under ``root`` that has no log and that the manifest, its only witness, does not name."""
    try:
        chains = read_chains(manifest)
    except PatchlaneError:
        return []  # ``lost`` says so
    known = {(folder, name) for folder, chain in chains.items() for name in chain.names}
    rows = [
        path for path in kept(root) if path.name.startswith((*WITHOUT_LOG,)) and not path.with_suffix(".log").exists()
    ]
    return [
        f"{root.name}/{path.parent.name}/{path.name}: the manifest does not name it, and it has no log; "
        "fix: python -m reproducers.manifest refresh --no-import"
        for path in rows
        if (path.parent.name, path.stem) not in known
    ]


def refuse_loss(manifest: Path, root: Path, source: Path | None) -> None:
    """Raises PatchlaneError if a receipt of the manifest is neither in ``root`` nor in ``source``, the import."""
    if rows := lost(manifest, root, source):
        raise PatchlaneError("\n".join(rows), "--accept, to forget them")
