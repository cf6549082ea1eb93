"""Folders as an installation leaves them, with the toy's package, and fingerprints of the toy."""

from toy import FIRST, SOURCE, TOTAL, edited, write_tree

from reproducers.record.fingerprint import Fingerprint, Fingerprints, KnownTree
from reproducers.studies.installed.functions import functions

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
    trees = trees or (BUGGY, MENDED, HEALTHY)
    return Fingerprints(packs={"pack07": Fingerprint(distribution="toyup", package="toyup", trees=list(trees))})
