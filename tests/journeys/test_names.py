"""Every place where a name from a file becomes a path: each goes through ``base.files``, and refuses what leads out."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from toy import RECORD, Toy, write_tree
from toy_environment import known

from model.data.errors import DataError
from model.data.stored import dataset
from model.patched.stacks import Stack
from model.reports import kept
from model.saved import reading
from patchlane.applied.transaction import change
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import KEY, within
from patchlane.known.index import parsed
from patchlane.patches import state
from reproducers.carried import entry
from reproducers.carried.patches import mails, reader
from reproducers.desk.page.publish import publish
from reproducers.desk.page.training import training_runs
from reproducers.evidence import heads
from reproducers.record.entry import Chain, Manifest
from reproducers.record.mutation import MutationScore
from reproducers.record.schema import ROOT, Need, Pin
from reproducers.upstream import patching, pins
from reproducers.upstream.bundle import install
from reproducers.upstream.store import Store

OUT = ["../victim", "a/../../victim", "/ABSOLUTE/victim", "victim\x1b[2J", "victim\n", "a\\..\\victim", "", ".."]
SHA = "0" * 64


def index(**fields):
    tree = {"label": "toy", "digest": SHA, "files": [], "links": {}}
    return {"trees": {"engine-x": tree}, "engine": "engine-x"} | fields


def tree(**fields):
    return {"label": "toy", "digest": SHA, "files": [], "links": {}} | fields


def chained(name, root):
    write_tree(root, {"m.yaml": Manifest(packs={}, receipts={"07": Chain(sha256=SHA, names=[name])}).text})
    heads.lost(root / "m.yaml", root)


def mutated(name, root):
    pack = Toy(root).pack()
    one = SimpleNamespace(where=name, source=SHA)
    subject = SimpleNamespace(pack=7, patch=kept.file_sha256(pack.patch), reproducer=kept.file_sha256(pack.reproducer))
    MutationScore.of(SimpleNamespace(subject=subject, mutants=[one]), pack)


def trained(name, root):
    write_tree(root, {"run/receipt.json": json.dumps({"summary": {}, "files": {name: SHA}})})
    training_runs(root)


def kept_runs(name, root):
    write_tree(root, {"run/receipt.json": json.dumps({"summary": {}, "files": {name: SHA}})})
    raise PatchlaneError(next(row for row in kept.faults(root) if "StoreError" in row))


def checkpoint(name, root):
    write_tree(root, {reading.DIGESTS: json.dumps({"files": {name: SHA}})})
    raise reading.damage(root)


def recorded(name, root):
    record = RECORD.replace("licence: Apache-2.0", f"licence: Apache-2.0\n  source_root: {json.dumps(name)}")
    Toy(root).pack(record=record)


def patched(name, root):
    write_tree(root, {"fix.patch": f"--- {name}\n+++ {name}\n@@ -0,0 +1 @@\n+x\n"})
    patching.files(root / "fix.patch")


def quilted(name, root):
    mails.files([write_tree(root / "quilt", {"series": name + "\n"})])


def filled(root, **fields):
    install.fill_store(index(**fields), root)


def indexed(name, root):
    content = json.loads(known().index.text)
    content["packs"]["pack07"]["patches"]["fix.patch"]["paths"] = [name]
    parsed(json.dumps(content).encode(), "x.json", "")


def patched_files(name, root):
    write_tree(root, {f"{state.FOLDER}/{state.NAME}": json.dumps({"schema_version": 1, "changes": {name: {}}})})
    state.load(root)


# {module: the places in it, each given a name and a folder}
PLACES = {
    "patchlane.known.index": {"a patched file": indexed},
    "patchlane.patches.state": {"a changed file": patched_files},
    "patchlane.applied.transaction": {"a changed file": lambda name, root: change(root, {name: b"x"}, ())},
    "reproducers.upstream.bundle.install": {
        "a tree's key": lambda name, root: filled(root, trees={name: tree()}),
        "the engine's key": lambda name, root: filled(root, engine=name),
        "a file of a tree": lambda name, root: install.build(tree(files=[[name, False, SHA]]), root, root / "t"),
        "a file's object": lambda name, root: install.build(tree(files=[["a", False, name]]), root, root / "t"),
        "a link of a tree": lambda name, root: install.build(tree(links={name: "a"}), root, root / "t"),
    },
    "reproducers.carried.patches.reader": {
        "a patch's file": lambda name, root: reader.parse(f"--- {name}\n+++ {name}\n@@ -0,0 +1 @@\n+x\n".encode(), "x"),
    },
    "reproducers.carried.patches.mails": {"a patch of a series": quilted},
    "reproducers.carried.entry": {"a queue": lambda name, root: entry.write(root, name, [])},
    "reproducers.upstream.store": {
        "a tree's key": lambda name, root: Store(root).tree("trees", name, pins.Origin(kind="made"), lambda _: None),
        "an artefact's file": lambda name, root: Store(root, offline=True).artifact("toy", name, SHA),
        "an artefact's digest": lambda name, root: Store(root, offline=True).artifact("toy", "toy.whl", name),
    },
    "reproducers.upstream.pins": {
        "a tree's key": lambda name, root: pins.stored_digest(Store(root, offline=True), name),
    },
    "reproducers.upstream.patching": {
        "a patch's file": patched,
        "the source root": lambda name, root: patching.import_root(root, name),
    },
    "reproducers.record.schema": {
        "a pin's file": lambda name, root: Pin(release="1.0", artifacts={name: SHA}),
        "a need's file": lambda name, root: Need(distribution="toy", release="1.0", artifacts={name: SHA}),
        "the source root": recorded,
    },
    "reproducers.record.mutation": {"a mutant's file": mutated},
    "reproducers.evidence.heads": {"a receipt of the manifest": chained},
    "reproducers.desk.page.training": {"a kept run's file": trained},
    "reproducers.desk.page.publish": {"a page": lambda name, root: publish({name: b""}, root / "site")},
    "model.patched.stacks": {"a stack": lambda name, root: Stack.lock.fget(SimpleNamespace(name=name))},
    "model.data.stored.dataset": {
        "a data set's file": lambda name, root: dataset.damaged(
            root, SimpleNamespace(files={name: SimpleNamespace(sha256=SHA)})
        ),
    },
    "model.reports.kept": {"a kept run's file": kept_runs},
    "model.saved.reading": {"a checkpoint's file": checkpoint},
}
# Names that a test elsewhere tries, for they lie in what other programs write.
ELSEWHERE = {
    "reproducers.carried.writing": "tests/carried/patches/test_reader.py",
    "reproducers.upstream.archive": "tests/upstream/test_archive.py",
    "reproducers.upstream.git": "tests/upstream/test_git.py",
    "reproducers.studies.suites.suite": "tests/studies/suites/test_suite.py",
    "reproducers.studies.versions.partial": "tests/studies/versions/test_applying.py",
}
CASES = [(module, place, act) for module, places in PLACES.items() for place, act in places.items()]


@pytest.mark.parametrize("name", OUT, ids=ascii)
@pytest.mark.parametrize(("place", "act"), [row[1:] for row in CASES], ids=[f"{row[0]}-{row[1]}" for row in CASES])
def test_a_name_that_leads_out_is_refused(tmp_path, monkeypatch, place, act, name):
    victim = write_tree(tmp_path / "victim", {"precious": "kept"})
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("PATCHLANE_STORE", str(root / "store"))
    with pytest.raises((PatchlaneError, ValidationError, DataError)):
        act(name.replace("/ABSOLUTE", str(tmp_path)), root)
    assert (victim / "precious").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "root"}


def test_each_place_is_listed():
    """A module that makes paths of names must be tried here."""
    calling = set()
    for path in (path for name in ("patchlane", "reproducers", "model") for path in (ROOT / name).rglob("*.py")):
        called = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        if any(
            a.name in ("within", "astray")
            for node in called
            if node.module == "patchlane.base.files"
            for a in node.names
        ):
            calling.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert calling == {*PLACES, *ELSEWHERE}
    assert [page for page in ELSEWHERE.values() if not (ROOT / page).is_file()] == []


def test_a_link_below_the_folder_leads_nowhere(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to("..")
    assert within(tmp_path / "in", "a/b.py") == tmp_path / "in/a/b.py"
    for name, form in (("link/x", None), ("a.b", KEY), ("a/b", KEY), ("x" * 256, None), ("a/" * 1100, None)):
        with pytest.raises(PatchlaneError):
            within(tmp_path / "in", name, form)
    assert within(Path("in"), "-a_0", KEY) == Path("in/-a_0")
