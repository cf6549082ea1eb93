"""Folders as an installation leaves them, with the toy's package, and fingerprints of the toy."""

from pathlib import Path

import pytest
from toy import FIRST, SOURCE, TOTAL, edited, write_tree

from patchlane.known.functions import functions
from patchlane.known.index import SCHEMA, Index, Known, KnownPack, KnownPatch, KnownTree
from reproducers.studies.installed import described

PATCHES = {"fix.patch": KnownPatch("0" * 64, ("toyup/core.py",))}
NAMES = ("toyup/core.py:first", "toyup/core.py:total")
PATCHED = edited(TOTAL, FIRST)
FIXED = edited(TOTAL, (FIRST[0], "return 0"))


def installed(folder, files=SOURCE, version="1.0", name="toyup"):
    """A site-packages folder with these files and, with a version, the metadata of a distribution."""
    info = f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
    metadata = {info: f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    return write_tree(folder, {**files, **(metadata if version else {})})


def code(files):
    found = functions(files["toyup/core.py"].encode())
    return {name: found[name.split(":")[1]].digest for name in NAMES}


def tree(name, state, files=None, **more):
    """A measured tree; one without files is known by its release alone."""
    release = name if name[0].isdigit() else None
    return KnownTree(name=name, release=release, state=state, code=code(files) if files else {}, **more)


BUGGY = tree("1.0", "buggy", SOURCE, patch="fix.patch")
MENDED = tree("1.0", "patched", PATCHED, patch="fix.patch")
HEALTHY = tree("2.0", "fixed", FIXED)


def known(*trees):
    """An index that has pack07 with these trees, and no pack's folder."""
    trees = trees or (BUGGY, MENDED, HEALTHY)
    texts = {"title": "total forgets", "claim": "total is wrong.", "folder": "07_toy", "added": "2026-11-24"}
    plain = KnownPack(
        **texts, distribution="toyup", package="toyup", repository="toy/up", strip=1, trees=trees, patches=PATCHES
    )
    return Known(Index(SCHEMA, "2026-11-30", {"pack07": plain}), Path("packs"))


def known_of(*packs, trees=(), added="2026-11-24"):
    """The index of these packs, each with the trees, the packs' own folders beside it."""
    entries = {}
    for pack in packs:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(described, "days", lambda pack, root: (added, added))
            entries[pack.id] = described.described(pack, tuple(trees) or (BUGGY, MENDED, HEALTHY), pack.folder)
    index = Index(SCHEMA, "2026-11-30", entries, described.repositories([*packs]), described.releases_of([*packs]))
    return Known(index, packs[0].folder.parent)
