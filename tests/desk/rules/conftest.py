"""Copies of real packs to plant defects in, linted against their own receipts and the trees of the real store."""

import datetime
import functools
import getpass
import itertools
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from patchlane.base.files import file_sha256
from reproducers.desk.patches.trees import tree_of
from reproducers.desk.rules.case import Case
from reproducers.desk.rules.engine import examine
from reproducers.evidence.receipts import newest
from reproducers.kept import archive
from reproducers.record.schema import RELEASES, ROOT, load_pack, load_packs, read_yaml
from reproducers.upstream.store import Store

TODAY = datetime.date(2026, 11, 22)
PACKS = load_packs()
HOST, USER = "orion-gpu7", "mallory"
EXEMPTIONS = "lint-exemptions.yaml"


@dataclass
class Desk:
    """A pack's copy under ``root``, with its receipts."""

    root: Path
    store: Path
    name: str

    @property
    def folder(self):
        return self.root / "packs" / self.name

    def path(self, file):
        if file == EXEMPTIONS:
            return self.root / "packs" / file
        if file == "log":
            return self.case().newest["cpu"].with_suffix(".log")
        return self.folder / file

    def edit(self, file, old, new, fresh=True):
        """Replace once; ``fresh``: the receipts are as if taken after the change."""
        path = self.path(file)
        before = file_sha256(path) if path.exists() else ""
        text = path.read_bytes().decode() if path.exists() else ""
        assert text.count(old) == 1 or not old, f"{file} holds {old!r} {text.count(old)} times"
        path.write_bytes((text.replace(old, new) if old else text + new).encode())
        for receipt in (self.root / "receipts" / self.name[:2]).glob("*.json") if fresh and before else []:
            receipt.write_text(receipt.read_text().replace(before, file_sha256(path)))

    def lint(self, today=TODAY):
        return examine([load_pack(self.folder)], self.root / "receipts", self.store, today)

    def case(self, today=TODAY):
        return Case(load_pack(self.folder), self.root / "receipts", self.store, today)


@functools.cache
def receipts_of(folder):
    """{name: content} of the newest receipt in each lane at each pin, and of its log."""
    (pack,) = [pack for pack in PACKS if pack.folder == folder]
    found = [newest(pack, lane, ROOT / "receipts", pin) for lane, pin in itertools.product(pack.lanes, pack.pins)]
    paths = [path for receipt in found if receipt for path in (receipt, receipt.with_suffix(".log"))]
    return {path.name: archive.data(path) for path in paths}


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """The real store's trees, and what it keeps of formatting by content; all else is our own."""
    root, real = tmp_path_factory.mktemp("store"), Store().root
    (real / "cache" / "format").mkdir(parents=True, exist_ok=True)
    (root / "cache").mkdir()
    for name in ("trees", "cache/format"):
        (root / name).symlink_to(real / name)
    return root


@pytest.fixture
def desk(tmp_path, store, monkeypatch, believed):
    """``desk(number)``: a copy of that pack; skips where its tree is not in the store and ``tree`` is asked for."""
    pytest.importorskip("cmarkgfm")
    monkeypatch.setattr(platform, "node", lambda: HOST)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)

    def make(number, tree=False):
        (pack,) = [pack for pack in PACKS if pack.number == number]
        if tree and tree_of(pack, pack.pins["live"], store) is None:
            pytest.skip(f"{pack.pins['live'].origin} is not in the store: python -m reproducers.run {pack.id}")
        shutil.copytree(pack.folder, tmp_path / "packs" / pack.folder.name)
        for name in ("needs.yaml", RELEASES):
            shutil.copy(ROOT / "packs" / name, tmp_path / "packs")
        kept = [entry for entry in read_yaml(ROOT / "packs" / EXEMPTIONS)[1] if entry["pack"] == pack.id]
        kept = [entry | {"until": datetime.date.max} for entry in kept]  # a test asks of later days
        if kept:
            (tmp_path / "packs" / EXEMPTIONS).write_text(yaml.safe_dump(kept))
        for below in {n for pin in pack.pins.values() for n in pin.stacked_on}:
            (folder,) = ROOT.glob(f"packs/{below:02d}_*")
            (tmp_path / "packs" / folder.name).mkdir()
            shutil.copy(folder / "fix.patch", tmp_path / "packs" / folder.name)
        target = tmp_path / "receipts" / pack.folder.name[:2]
        target.mkdir(parents=True)
        for name, data in receipts_of(pack.folder).items():
            (target / name).write_bytes(data)
        return Desk(tmp_path, store, pack.folder.name)

    return make
