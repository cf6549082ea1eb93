"""Install a bundle's parts into the store. Standard library only until the bundle's own requirements are unpacked."""

from __future__ import annotations

import argparse
import hashlib
import lzma
import platform
import shutil
import sys
import tarfile
from pathlib import Path
from typing import IO, Any, cast

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError, StoreError
from patchlane.base.files import KEY, file_sha256, opened, parsed_json, temporary, within
from patchlane.base.wording import printable
from reproducers.base.start import outdated

USAGE = "usage: python -m reproducers.bundle install PART..."
AGAIN = "copy every part again, from whom you trust"


class Parts:
    """The parts as one stream, in name order."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = sorted(paths, key=lambda p: p.name)
        self.current: IO[bytes] | None = None

    def read(self, size: int = -1) -> bytes:
        while True:
            if self.current is None:
                if not self.paths:
                    return b""
                self.current = opened(self.paths.pop(0))
            data = self.current.read(size)
            if data:
                return data
            self.current.close()
            self.current = None


def here() -> str:
    """This interpreter as a bundle's target."""
    kind = {"cpython": "cp"}.get(sys.implementation.name, sys.implementation.name)
    return f"{kind}{sys.version_info[0]}{sys.version_info[1]}-{sys.platform}-{platform.machine()}"


def check_target(target: str) -> None:
    """Raise PatchlaneError if the bundle is for another interpreter or machine."""
    if target != here():
        version = target.split("-")[0].removeprefix("cp3")
        raise PatchlaneError(
            f"the bundle is for {target}, this Python is {here()}",
            f"python3.{version} -m reproducers.bundle install PART..., or make one with --target {here()}",
        )


def unpack(paths: list[Path], target: Path) -> dict[str, Any]:
    """Unpack objects to ``target/objects``, check each against its digest, and return the bundle's index.

    Raises PatchlaneError for another interpreter's bundle, ValueError for an altered bundle.
    """
    (target / "objects").mkdir()
    index: dict[str, Any] = {}
    with lzma.LZMAFile(cast("IO[bytes]", Parts(paths))) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        for member in tar:
            source = tar.extractfile(member)
            if source is None:
                continue
            data = source.read()
            if member.name == "index.json":
                index = parsed_json(data)
                check_target(index.get("target", here()))  # the first bundles do not name theirs
                continue
            sha = hashlib.sha256(data).hexdigest()
            if member.name != f"objects/{sha}":
                raise ValueError(f"{member.name} has the bytes of {sha}")
            (target / "objects" / sha).write_bytes(data)
    return index


def build(tree: dict[str, Any], objects: Path, target: Path) -> None:
    """Write a tree's files and links under ``target``. Raises StoreError or ValueError for a path outside of it."""
    target.mkdir(exist_ok=True)
    for name, executable, sha in tree["files"]:
        path = within(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(within(objects, sha), path)
        path.chmod(0o755 if executable else 0o644)
    for name, aim in tree["links"].items():
        path = within(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.parent.resolve() / aim).resolve().is_relative_to(target.resolve()):
            raise ValueError(f"link {name!r} leaves the tree")
        path.symlink_to(aim)


def fill_store(index: dict[str, Any], objects: Path) -> Path:
    """Put every tree into the store and return the folder of the engine's requirements.

    Raises StoreError if a tree's content digest is not the bundle's, or before any if a key is not of a bundle.
    """
    from reproducers.record.origin import Origin
    from reproducers.upstream.store import Store

    store = Store(offline=True)
    places = {key: within(store.root / "trees", key, KEY) for key in (*index["trees"], str(index["engine"]))}
    for key, tree in index["trees"].items():

        def fill(target: Path, tree: dict[str, Any] = tree) -> dict[str, Any]:
            build(tree, objects, target)
            return {name: value for name, value in tree.get("record", {}).items() if name not in ("digest", "label")}

        made = store.tree("trees", key, Origin(kind="made", name=tree["label"]), fill)
        if made.digest != tree["digest"]:
            raise StoreError(f"{tree['label']}: digest {made.digest}, the bundle says {tree['digest']}")
        print(printable(f"{tree['label']}: {len(tree['files'])} files"))
    return places[str(index["engine"])]


def _options(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """(parts, the digests that they must have). argparse ends the verb with 2 for anything else."""
    parser = argparse.ArgumentParser("python -m reproducers.bundle install", allow_abbrev=False)
    parser.add_argument("parts", nargs="*", type=Path, metavar="PART")
    parser.add_argument("--sha256", default="", help="digests of all parts as `bundle` printed them, with commas")
    given = parser.parse_args(arguments)
    return given.parts, [digest for digest in given.sha256.lower().split(",") if digest]


def compare(paths: list[Path], digests: list[str]) -> None:
    """Raise StoreError unless the parts' sha256 are exactly ``digests``, in any order."""
    actual = {file_sha256(path): path for path in paths}
    if foreign := [path for digest, path in actual.items() if digest not in digests]:
        raise StoreError(f"{foreign[0]}: sha256 is {file_sha256(foreign[0])}, which --sha256 does not name", AGAIN)
    if missing := set(digests) - set(actual):
        raise StoreError(f"no part has the sha256 {', '.join(sorted(missing))}", AGAIN)


def main(arguments: list[str]) -> int:
    """Install; returns the exit code: 2 for bad parts, another Python or a full disk, with the remedy on stderr."""
    paths, digests = _options(arguments)
    absent = [str(p) for p in paths if not p.is_file()]
    if not paths or absent:
        print(printable(f"{USAGE}\nnot files: {', '.join(absent) or 'no parts given'}"), file=sys.stderr)
        return 2
    try:
        if digests:
            compare(paths, digests)
        site = install(paths)
    except PatchlaneError as error:
        return refused(error)
    except (lzma.LZMAError, EOFError, tarfile.TarError, ValueError, LookupError, TypeError, AttributeError) as error:
        return refused(PatchlaneError(f"the bundle is incomplete or altered: {error}", AGAIN))
    except OSError as error:
        return refused(
            PatchlaneError(disk.described(error).what, "make room, or export TMPDIR=DIR PATCHLANE_STORE=DIR")
        )
    print(f"installed. Now:\n  export PYTHONPATH={site}\n  python -m reproducers.run --offline PACK...")
    return 0


def refused(error: PatchlaneError) -> int:
    """Print the error and return its exit code."""
    print(printable(f"error: {error}"), file=sys.stderr)
    return int(error.exit_code)


def install(paths: list[Path]) -> Path:
    """Put the trees of the parts into the store; returns the folder of the engine's requirements."""
    if outdated():
        raise PatchlaneError(outdated(), "python3.12 -m reproducers.bundle install PART...")
    with temporary() as scratch:
        folder = Path(scratch)
        index = unpack(paths, folder)
        build(index["trees"][index["engine"]], folder / "objects", folder / "engine")
        sys.path.append(str(folder / "engine"))
        return fill_store(index, folder / "objects")
