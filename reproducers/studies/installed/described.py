"""A pack's entry in the audit's index, and what the packs' pins tell of upstreams."""

from __future__ import annotations

from pathlib import Path

from patchlane.base.files import file_sha256
from patchlane.known.index import KnownPack, KnownPatch, KnownTree
from patchlane.patches import landing
from reproducers.evidence.shelf import chain
from reproducers.record.schema import Pack
from reproducers.upstream import patching


def described(pack: Pack, trees: tuple[KnownTree, ...], root: Path) -> KnownPack:
    """A pack's entry: all but the trees follows from its own files, and its day from the receipts under ``root``."""
    strip = landing.depth(pack.upstream.source_root)
    patches = {tree.patch: pack.folder / tree.patch for tree in trees if tree.patch}
    threads = [t.url for t in pack.upstream_state.threads if t.relation in ("reports it", "fixes it", "introduced it")]
    return KnownPack(
        title=pack.title,
        claim=pack.claim,
        folder=pack.folder.name,
        added=days(pack, root)[0],
        distribution=pack.upstream.distribution,
        package=pack.upstream.package,
        repository=pack.upstream.repo,
        strip=strip,
        trees=trees,
        harm=pack.harm,
        effect=pack.effect,
        sources=tuple(threads),
        patches={
            name: KnownPatch(file_sha256(path), tuple(patching.touched(path, strip))) for name, path in patches.items()
        },
    )


def releases_of(packs: list[Pack]) -> dict[str, dict[str, str]]:
    """{distribution: {commit: the release of which some pin says so}}."""
    commits: dict[str, dict[str, str]] = {}
    for pack in packs:
        for pin in pack.pins.values():
            if pin.sha and pin.release:
                commits.setdefault(pack.upstream.distribution, {})[pin.sha] = pin.release
    return commits


def repositories(packs: list[Pack]) -> dict[str, str]:
    """{"owner/name" in lower case: distribution} of the packs' upstreams."""
    return {pack.upstream.repo.lower(): pack.upstream.distribution for pack in packs}


def days(pack: Pack, root: Path) -> tuple[str, str]:
    """The days, as 2026-12-31, of the pack's first and newest receipt under ``root``, which their names tell."""
    names = [path.name for path in chain(root / f"{pack.number:02d}")]
    first, newest = (f"{name[:4]}-{name[4:6]}-{name[6:8]}" for name in (min(names), max(names)))
    return first, newest
