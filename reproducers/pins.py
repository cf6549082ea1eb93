"""From what was asked (a pin's name, a release, a SHA, a folder) to trees in the store."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from reproducers import archive, gittree, index
from reproducers.errors import CannotTestHere
from reproducers.schema import Need, Pack, Pin, load_needs
from reproducers.store import Store, Tree


def resolve(pack: Pack, at: str) -> Pin:
    """The pin named ``at``: ``live``, ``fixed``, a release (with the index's digests) or a 40-hex SHA."""
    name = pack.pin_name(at)
    if name is not None:
        return pack.pins[name]
    needs = pack.pins["live"].needs
    if re.fullmatch(r"[0-9a-f]{40}", at):
        return Pin(sha=at, needs=needs)
    return Pin(release=at, artifacts=index.release_files(pack.upstream.distribution, at), needs=needs)


def choose(artifacts: dict[str, str], tags: list[Tag] | None = None) -> tuple[str, str]:
    """(file name, sha256) of the best artefact for an interpreter: its wheel, else an sdist, else any Linux wheel.

    The last is right for code that is only read and imported as Python: nothing of a wheel is installed.
    """
    ranks = {tag: rank for rank, tag in enumerate(tags if tags is not None else sys_tags())}

    def rank(filename: str) -> tuple[int, int]:
        try:
            offered = parse_wheel_filename(filename)[3]
        except InvalidWheelFilename:
            return (1, 0)
        best = min((ranks[t] for t in offered if t in ranks), default=None)
        foreign = 2 if any("linux" in t.platform and "x86_64" in t.platform for t in offered) else 3
        return (0, best) if best is not None else (foreign, 0)

    name = min(artifacts, key=lambda f: (rank(f), f))
    return name, artifacts[name]


def need_artifact(need: Need, tags: list[Tag] | None = None) -> tuple[str, str]:
    """The artefact of a need for an interpreter, or its sdist; CannotTestHere when none is pinned for it."""
    ranks = set(tags if tags is not None else sys_tags())
    for filename, sha256 in need.artifacts.items():
        if not filename.endswith(".whl") or parse_wheel_filename(filename)[3] & ranks:
            return filename, sha256
    raise CannotTestHere(
        f"{need.distribution} {need.release} is pinned for no wheel that this interpreter can load",
        "add its wheel to packs/needs.yaml",
    )


def needs_of(pack: Pack, pin: Pin) -> list[Need]:
    """The distributions that a pin needs, over all its sets."""
    known = load_needs(pack.folder.parent)
    return [need for name in pin.needs for need in known[name]]


def need_set_key(needs: list[Need], tags: list[Tag] | None = None) -> str:
    """The store key of a set's tree: the artefacts chosen for an interpreter."""
    shas = [need_artifact(need, tags)[1] for need in needs]
    return hashlib.sha256("\n".join(shas).encode()).hexdigest()


def need_trees(store: Store, pack: Pack, pin: Pin, tags: list[Tag] | None = None) -> list[Tree]:
    """One tree a set of needs, side by side as in one site-packages: they load each other's libraries.

    For this interpreter, or for the one that ``tags`` describe.
    """
    known = load_needs(pack.folder.parent)
    return [_need_set(store, name, known[name], tags) for name in pin.needs]


def _need_set(store: Store, name: str, needs: list[Need], tags: list[Tag] | None) -> Tree:
    chosen = [(need, *need_artifact(need, tags)) for need in needs]
    key = need_set_key(needs, tags)

    def fill(target: Path) -> None:
        for need, filename, sha256 in chosen:
            inner = target / ".artefact"
            inner.mkdir()
            archive.unpack(store.artifact(need.distribution, filename, sha256), inner)
            archive.lift(inner, target)

    return store.tree("trees", key, f"needs {name}", fill)


def pin_tree(store: Store, pack: Pack, pin: Pin, options: dict[str, Any]) -> Tree:
    """The tree under test. ``options``: ``upstream`` (a folder), ``allow_dirty``, ``tags`` (another interpreter's)."""
    folder: Path | None = options.get("upstream")
    if folder is not None:
        wanted = pin.sha if pin.release is None else None
        return gittree.checkout_tree(store, folder, sha=wanted, allow_dirty=bool(options.get("allow_dirty")))
    if pin.release is not None:
        filename, sha256 = choose(pin.artifacts, options.get("tags"))
        return store.release_tree(pack.upstream.distribution, pin.release, filename, sha256)
    assert pin.sha is not None
    source = pin.source or f"https://github.com/{pack.upstream.repo}"
    return gittree.commit_tree(store, source, pin.sha, f"{pack.upstream.distribution} git {pin.sha}")
