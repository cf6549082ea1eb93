"""Parts of a bundle: unpacked store trees, each file once by digest, and the engine's own requirements."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import sys
import tarfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import file_sha256, temporary

if TYPE_CHECKING:
    from packaging.tags import Tag

    from reproducers.upstream.store import Store, Tree

PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in range(39, 4, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
# Jumps in code made alike, matches up to 64 MiB back: a seventh smaller than the preset alone, a quarter slower
XZ = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": 64 << 20}]
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def target_tags(target: str) -> list[Tag]:
    """Wheel tags of a target such as ``cp312-linux-x86_64``. Raises PatchlaneError for another form."""
    from packaging.tags import compatible_tags, cpython_tags

    match = re.fullmatch(r"cp3(\d+)-linux-x86_64", target)
    if match is None:
        raise PatchlaneError(f"--target {target}", "--target cp312-linux-x86_64")
    version = (3, int(match[1]))
    interpreter = f"cp3{match[1]}"
    return [*cpython_tags(version, platforms=PLATFORMS), *compatible_tags(version, interpreter, PLATFORMS)]


def part_size(text: str) -> int:
    """Bytes of ``60M``, ``500K`` or a plain number. Raises PatchlaneError for any other text."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if match is None or int(match[1]) == 0:
        raise PatchlaneError(f"--split {text}", "--split 60M")
    return int(match[1]) * UNITS[match[2]]


class SplitWriter(io.RawIOBase):
    """A write-only file spread over ``STEM.partNN`` of at most ``size`` bytes each."""

    def __init__(self, stem: Path, size: int) -> None:
        self.stem, self.size, self.parts, self.room = stem, size, list[Path](), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            if not self.room:
                self.parts.append(self.stem.with_name(f"{self.stem.name}.part{len(self.parts) + 1:02d}"))
                self.parts[-1].write_bytes(b"")
                self.room = self.size
            taken = view[: self.room]
            with self.parts[-1].open("ab") as sink:
                sink.write(taken)
            self.room -= len(taken)
            view = view[len(taken) :]
        return total


def engine_requirements(store: Store, target: str) -> Tree:
    """The engine's own requirements as one unpacked tree for the target's Python."""
    import tomllib  # not at the top: ``install`` starts on any Python, to name the one that it needs

    from patchlane.base.wording import requirement_name
    from reproducers.record.origin import Origin
    from reproducers.record.schema import ROOT
    from reproducers.upstream import archive

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = f"3.{target.split('-')[0].removeprefix('cp3')}"
    with temporary() as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", version]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        extras = project["optional-dependencies"]
        lent = [row for row in extras["cpu"] if requirement_name(row) == "numpy"]
        command += [
            "-d",
            str(scratch),
            *project["dependencies"],
            *extras["engine"],
            *lent,
        ]  # arms.LENT: the host may have another
        done = clock.run(command, clock.FETCH_S, "pip download", capture_output=True, text=True)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            raise CannotTestHere(f"the engine's requirements cannot be fetched: {done.stderr.strip()[-300:]}")
        key = "engine-" + hashlib.sha256("\n".join(w.name for w in wheels).encode()).hexdigest()

        def fill(folder: Path) -> None:
            for wheel in wheels:
                inner = folder / ".wheel"
                inner.mkdir()
                archive.unpack(wheel, inner)
                archive.lift(inner, folder)

        return store.tree("trees", key, Origin(kind="made", name=f"engine requirements for {target}"), fill)


def collect(store: Store, names: list[str], pin_names: list[str], target: str) -> dict[str, Tree]:
    """{store key: tree} of every pinned tree and need of the packs, chosen for the target's interpreter.

    Raises PatchlaneError if no pack has a pin of one of the names, or a pack has a pin of none of them.
    """
    from reproducers.record.schema import load_named
    from reproducers.upstream import pins

    tags, collected, packs = target_tags(target), dict[str, Any](), load_named(names)
    known = list(dict.fromkeys(name for pack in packs for name in pack.pins))
    if absent := [name for name in pin_names if name not in known]:
        raise PatchlaneError(f"--pins {','.join(absent)}: no pack named has it", f"--pins {','.join(known)}")
    for pack in packs:
        if not set(pin_names) & set(pack.pins):
            remedy = f"--pins {','.join([*pin_names, *pack.pins])}"
            raise PatchlaneError(f"{pack.id} has no pin {' or '.join(pin_names)}", remedy)
    for pack in packs:
        both = ["fixed"] if pack.kind == "guard" and "live" in pin_names else []  # a guard runs its fixed release too
        for name in (name for name in dict.fromkeys([*pin_names, *both]) if name in pack.pins):
            pin = pack.pins[name]
            needs = pins.need_parts(store, pins.need_sets(pack, pin.needs), pack.lanes, tags)
            trees = [pins.base_tree(store, pack, pin, pins.Source(tags=tags)), *needs]
            collected |= {tree.path.name: tree for tree in trees}
    return collected


def write(trees: dict[str, Tree], engine: Tree, stem: Path, size: int, target: str) -> list[Path]:
    """Write the parts: an xz-compressed tar of ``index.json`` and each distinct file once as ``objects/SHA256``."""
    from reproducers.upstream.store import record, tree_files

    index: dict[str, Any] = {"schema_version": 1, "target": target, "engine": engine.path.name, "trees": {}}
    objects: dict[str, Path] = {}
    for key, tree in {**trees, engine.path.name: engine}.items():
        files, links = [], {}
        for name, path in tree_files(tree.path):
            if path.is_symlink():
                links[name] = str(path.readlink())
                continue
            sha = file_sha256(path)
            objects.setdefault(sha, path)
            files.append([name, bool(path.stat().st_mode & 0o100), sha])
        index["trees"][key] = {"label": str(tree.origin), "digest": tree.digest, "files": files, "links": links}
        index["trees"][key]["record"] = record(tree.path)
    sink = SplitWriter(stem, size)
    with (
        lzma.LZMAFile(cast("IO[bytes]", sink), "wb", format=lzma.FORMAT_XZ, filters=XZ) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        _add(tar, "index.json", json.dumps(index).encode())
        for sha in sorted(objects, key=lambda s: objects[s].as_posix()):
            _add(tar, f"objects/{sha}", objects[sha].read_bytes())
    return sink.parts


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
