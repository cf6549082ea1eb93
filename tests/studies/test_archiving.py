"""Superseded receipts go into the archive of their folder: read like files there, and missed where one is not."""

import datetime
import json
import shutil

import pytest
from forged import everywhere
from toy import Toy, write_tree
from typer.testing import CliRunner

import reproducers.receipts as verb
from patchlane.base import clock
from patchlane.base.errors import PatchlaneError
from reproducers.evidence import heads, manifest, receipts, shelf, verification
from reproducers.evidence.verification import verify_all
from reproducers.kept import archive
from reproducers.kept.archive import INDEX, TAR
from reproducers.record import schema
from reproducers.record.entry import Manifest
from reproducers.studies import archiving

START = datetime.datetime(2026, 11, 1, 9, tzinfo=datetime.UTC)
LATE = datetime.date(2026, 11, 30)


def taken(toy, run, days):
    """A receipt of the run, that many days after the first."""
    run.started = START + datetime.timedelta(days=days)
    return receipts.write(run, shelf.COMMITTED, "bench", ["pack07"], {str(toy.store.root): "<store>"})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Four receipts of both arms a day apart, and one of the pristine arm before them; the manifest names them."""
    toy = Toy(tmp_path_factory.mktemp("archiving"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "COMMITTED", toy.root / "receipts")
        pack = toy.pack()
        both, pristine = toy.run(pack), toy.run(pack, arm="pristine")
        for days, run in enumerate([pristine, both, both, both, both]):
            taken(toy, run, days)
    return toy


@pytest.fixture
def desk(made, tmp_path, monkeypatch):
    """A copy of the toy: (toy, pack, folder of its receipts); the verbs take it for the project."""
    shutil.copytree(made.root, tmp_path, dirs_exist_ok=True)
    root = tmp_path / "receipts"
    monkeypatch.setattr(shelf, "COMMITTED", root)
    monkeypatch.setattr(verb, "COMMITTED", root)
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    monkeypatch.setattr(clock, "today", lambda: LATE)
    monkeypatch.setattr(archiving, "cited", lambda: set())
    toy = Toy(tmp_path)
    pack = toy.pack()
    name(tmp_path)
    return toy, pack, root / "07"


def name(root):
    (root / "manifest.yaml").write_text(Manifest(packs={}, receipts=heads.heads(root / "receipts")).text)


def archived(pack, folder, before=LATE, named=frozenset()):
    paths = archiving.superseded(pack, folder.parent, before, named)
    archiving.move(folder, paths)
    return paths


def said(folder):
    """What is wrong, to a verify of all."""
    lost = heads.lost(folder.parent.parent / "manifest.yaml", folder.parent)
    return [row for rows in verify_all(folder.parent).values() for row in rows], lost


def test_the_superseded_ones_are_read_like_files_and_the_manifest_says_the_same(desk):
    toy, pack, folder = desk
    chain, entry = shelf.chain(folder), manifest.entry_of(pack, folder.parent)
    texts = {path: (archive.data(path), receipts.read(path)) for path in chain}
    paths = archived(pack, folder)
    assert paths == chain[1:4] and {p.name for p in folder.iterdir()} == {
        INDEX,
        TAR,
        *(name for path in (chain[0], chain[4]) for name in (path.name, path.with_suffix(".log").name)),
    }
    assert said(folder) == ([], []) and shelf.chain(folder) == chain and shelf.every(folder.parent) == chain
    assert {path: (archive.data(path), receipts.read(path)) for path in chain} == texts
    assert manifest.entry_of(pack, folder.parent) == entry
    name(toy.root)
    (listed,) = heads.heads(folder.parent).values()
    assert listed.names == [chain[0].stem, chain[4].stem] and listed.archive == archive.heads(folder)[-1]
    assert said(folder) == ([], []) and archived(pack, folder) == []


def test_those_that_stay_lie_open(desk):
    _, pack, folder = desk
    chain = shelf.chain(folder)
    shelf.signature(chain[1]).write_text("signed")
    assert archiving.superseded(pack, folder.parent, LATE, {chain[2].stem}) == [chain[3]]
    assert archiving.superseded(pack, folder.parent, START.date() + datetime.timedelta(days=2), set()) == [chain[2]]
    assert archiving.superseded(pack, folder.parent, START.date(), set()) == []


def test_a_swept_release_that_no_pin_names_goes(desk, monkeypatch):
    _, pack, folder = desk
    first, last = shelf.chain(folder)[0], shelf.chain(folder)[4]
    assert not {first, last} & {*archiving.superseded(pack, folder.parent, LATE, set())}
    monkeypatch.setattr(type(pack), "pin_name", lambda *_: None)
    assert {first, last} & {*archiving.superseded(pack, folder.parent, LATE, set())}


def test_one_that_contradicts_its_pack_lies_open(desk, monkeypatch):
    _, pack, folder = desk
    monkeypatch.setattr(archiving, "expected", lambda *_: set())
    assert archiving.superseded(pack, folder.parent, LATE, set()) == []


def test_a_record_that_a_text_names_is_cited(tmp_path):
    stem = "20261101T090000Z_bench_0123456789ab"
    files = {"docs/log.md": f"[x](../receipts/07/{stem}.json)", "manifest.yaml": "20261101T090000Z_other_0123456789ab"}
    write_tree(tmp_path, files | {"packs/07/pack.yaml": f"score: mutation_{stem}.json"})
    assert archiving.cited(tmp_path) == {stem, f"mutation_{stem}"}


def test_the_next_receipt_names_the_archive_and_misses_it(desk):
    toy, pack, folder = desk
    archived(pack, folder)
    path = taken(toy, toy.run(pack), 6)
    assert receipts.read(path).archive == archive.heads(folder)[-1] and said(folder)[0] == []
    archived(pack, folder)
    assert len(archive.members(folder)) == 4 and said(folder)[0] == []  # it has grown since
    rebuilt(folder, archive.members(folder)[1:])
    faults, lost = said(folder)
    assert any("the archive that it names" in row for row in faults) and lost


def rebuilt(folder, members, **contents):
    """An archive of these members, made as ours is."""
    kept = {name: archive.held(folder / name) for one in members for name in one.files if name not in contents}
    archive._write(folder, members, kept | contents)


def harmed(folder, how):
    members = archive.members(folder)
    if how == "one is gone":
        rebuilt(folder, members[1:])
    elif how == "the last is gone":
        rebuilt(folder, members[:-1])
    elif how == "all are gone":
        (folder / TAR).unlink()
        (folder / INDEX).unlink()
    elif how == "forged with its index":
        path = folder / members[1].name
        for file in (path, path.with_suffix(".log")):
            file.write_bytes(archive.held(file))
        path = everywhere(path, command=["another"])
        made = archiving._member(path)
        contents = {file.name: file.read_bytes() for file in archiving._files(path)}
        rebuilt(folder, [members[0], made, *members[2:]], **contents)
        for file in archiving._files(path):
            file.unlink()
    elif how == "another verdict":
        rebuilt(folder, [members[0].model_copy(update={"verdict": "FIXED_UPSTREAM"}), *members[1:]])


@pytest.mark.parametrize(
    "how", ["one is gone", "the last is gone", "all are gone", "forged with its index", "another verdict"]
)
def test_an_archive_made_anew_is_missed_by_the_manifest(desk, how):
    toy, pack, folder = desk
    archived(pack, folder)
    name(toy.root)
    harmed(folder, how)
    faults, lost = said(folder)
    assert any(row.endswith("; fix: git checkout HEAD -- receipts/07") for row in lost)
    # the chain, but for the oldest and for what only the index says: a successor misses its predecessor
    assert any("its predecessor" in row for row in faults) == (how != "another verdict"), faults


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_archive_is_one_fault_and_the_open_ones_are_verified(desk, cut):
    toy, pack, folder = desk
    archived(pack, folder)
    name(toy.root)
    whole = (folder / TAR).read_bytes()
    (folder / TAR).unlink()
    if cut:
        (folder / TAR).write_bytes(whole[:-9])
    newest = shelf.statements(folder, archived=False)[-1]
    newest.with_suffix(".log").write_text("altered")
    found = verify_all(folder.parent)
    assert {*found} == {folder / INDEX, newest}
    told = CliRunner().invoke(verb.app, ["verify", str(folder.parent)])
    assert told.exit_code == 1 and f"07/{INDEX}: " in told.output and "git checkout HEAD -- " in told.output
    with pytest.raises(PatchlaneError) as refused:
        verification.refuse(found)
    assert str(folder / TAR) in refused.value.remedy


def test_a_kill_before_the_files_go_is_ended_by_the_next_call(desk, monkeypatch):
    _, pack, folder = desk
    chain, unlink = shelf.chain(folder), type(folder).unlink
    paths = archiving.superseded(pack, folder.parent, LATE, set())

    def killed(path, **options):
        if path in paths:
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(type(folder), "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        archiving.move(folder, paths)
    monkeypatch.setattr(type(folder), "unlink", unlink)
    assert said(folder) == ([], []) and shelf.chain(folder) == chain  # a statement whose log lies in the archive
    assert archived(pack, folder, START.date()) == paths  # whatever the days, for they are there already
    assert said(folder) == ([], []) and shelf.statements(folder, archived=False) == [chain[0], chain[4]]


def test_an_archived_receipt_is_not_imported_again(desk, tmp_path):
    _, pack, folder = desk
    shutil.copytree(folder, tmp_path / "taken" / "07")
    archived(pack, folder)
    assert manifest.importable([pack], tmp_path / "taken", folder.parent) == ([], 0)


def test_the_verb_names_what_would_go_and_moves_it(desk):
    _, _, folder = desk
    chain = shelf.chain(folder)
    told = CliRunner().invoke(verb.app, ["archive", "pack07", "--dry-run"])
    assert told.exit_code == 0 and told.output.split()[:3] == [f"07/{path.name}" for path in chain[1:4]]
    assert shelf.statements(folder, archived=False) == chain
    assert CliRunner().invoke(verb.app, ["archive", "pack07", "--days", "60"]).exit_code == 0
    assert shelf.statements(folder, archived=False) == chain
    assert CliRunner().invoke(verb.app, ["archive", "pack07"]).exit_code == 0
    assert shelf.statements(folder, archived=False) == [chain[0], chain[4]] and said(folder) == ([], [])
    names = [row["name"] for row in json.loads((folder / INDEX).read_text())]
    assert names == [path.name for path in chain[1:4]]
