"""``verify`` or the manifest's heads show every forged chain of receipts, even with digests and names made anew."""

import datetime
import hashlib
import re
import shutil

import pytest
from forged import both, everywhere, seal
from toy import Toy, git
from typer.testing import CliRunner

import reproducers.receipts as verb
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.evidence import heads, receipts, shelf, verification
from reproducers.evidence.verification import verify_all
from reproducers.record import engine, schema
from reproducers.record.entry import Manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three receipts of one pack, hours apart, and the manifest that names them."""
    toy = Toy(tmp_path_factory.mktemp("chain"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "COMMITTED", toy.root / "committed")
        run = toy.run(toy.pack())
        run.started = datetime.datetime(2026, 11, 21, 9, tzinfo=datetime.UTC)
        for _ in range(3):
            receipts.write(run, toy.root / "receipts", "bench", ["pack07"], {str(toy.store.root): "<store>"})
            run.started += datetime.timedelta(hours=2)
        kept = Manifest(packs={}, receipts=heads.heads(toy.root / "receipts")).text
        (toy.root / "manifest.yaml").write_text(kept)
    return toy.root


@pytest.fixture
def desk(made, tmp_path, monkeypatch):
    """A copy of them: (folder of receipts, manifest, the three, oldest first)."""
    monkeypatch.setattr(shelf, "COMMITTED", tmp_path / "committed")
    shutil.copytree(made / "receipts", tmp_path / "receipts")
    shutil.copy(made / "manifest.yaml", tmp_path)
    return tmp_path / "receipts", tmp_path / "manifest.yaml", shelf.every(tmp_path / "receipts")


def stated(*keys, value):
    """Change one field of the newest statement alone."""

    def change(root, three):
        body, log = both(three[-1])
        place = body
        for key in keys[:-1]:
            place = place[key]
        assert place[keys[-1]] != value
        place[keys[-1]] = value
        seal(three[-1], body, log)

    return change


def detail(*keys, value):
    return stated("predicate", "patchlane", *keys, value=value)


def logged(old, new):
    """Change the newest log alone."""

    def change(root, three):
        body, log = both(three[-1])
        assert re.search(old, log)
        seal(three[-1], body, re.sub(old, new, log, count=1))

    return change


def number_in_both(root, three):
    body, log = both(three[-1])
    body["predicate"]["patchlane"]["pristine"][0]["checks"][0]["measured"] = 0.75
    seal(three[-1], body, log.replace('"measured": 1.0', '"measured": 0.75', 1))


def of_another_pack(root, three):
    other = root / "08" / three[0].name
    other.parent.mkdir()
    shutil.copy(three[0], other)
    other.write_text(other.read_text() + "\n")
    everywhere(three[-1], previous=hashlib.sha256(other.read_bytes()).hexdigest())


def deleted(*gone):
    def change(root, three):
        for number in gone:
            three[number].unlink()
            three[number].with_suffix(".log").unlink()

    return change


def renamed(number, when):
    def change(root, three):
        for path in (three[number], three[number].with_suffix(".log")):
            path.rename(path.with_name(when + path.name[16:]))

    return change


def copied(folder):
    def change(root, three):
        shutil.copytree(root / "07", root / folder)

    return change


def chained_anew(root, three):
    body, log = both(three[1])
    before = seal(three[1], body, log.replace("[      bug] total: 1", "[      bug] total: 0.9"))
    everywhere(three[2], previous=hashlib.sha256(before.read_bytes()).hexdigest())


RECEIPTS = {  # {the change: (how, whether verify alone shows it)}
    "host in the log's stamp": (logged(r'"cores": \d+', '"cores": 999'), True),
    "prose": (logged(r"\[      bug\] total: 1", "[      bug] total: 0.9"), False),
    "the patched arm's own record": (logged(r'("outcome": )"healthy"', r'\1"different"'), True),
    "the arm's end in the log": (logged(r"-> healthy in", "-> bug in"), True),
    "the verdict in the log": (logged(r"\[verdict\] REPRODUCED_AND_FIXED", "[verdict] REPRODUCED"), True),
    "a number in the statement": (detail("pristine", 0, "checks", 0, "measured", value=9), True),
    "a number in statement and record": (number_in_both, False),
    "from where on it is the bug": (detail("pristine", 0, "checks", 0, "bug_above", value=9.0), True),
    "no limit of the bug": (detail("pristine", 0, "checks", 0, "bug_above", value=None), True),
    "signature of the crash": (detail("pristine", 0, "checks", 1, "signature", "exception", value="KeyError"), True),
    "origin": (stated("subject", 0, "annotations", "release", value="2.0"), True),
    "schema version in both": (lambda root, three: everywhere(three[-1], schema_version=2), True),
    "tree digest": (stated("subject", 0, "digest", "sha256", value="0" * 64), True),
    "tree": (stated("subject", 0, "name", value="toyup 2.0"), True),
    "executed lines": (detail("patched", 0, "executed", value={}), True),
    "patch digest": (stated("subject", 1, "digest", "sha256", value="0" * 64), True),
    "reproducer": (stated("predicate", "configuration", 1, "digest", "sha256", value="0" * 64), True),
    "engine": (stated("predicate", "configuration", 2, "digest", "sha256", value="0" * 64), True),
    "lane": (detail("lane", value="cuda"), True),
    "at": (detail("at", value="main"), True),
    "arm": (detail("arm", value="pristine"), True),
    "pin": (detail("pin", "release", value="2.0"), True),
    "pack": (detail("pack", value=8), True),
    "kind": (detail("kind", value="refactor"), True),
    "command": (detail("command", value=["pack08"]), True),
    "hunks": (detail("patch", "class", value="FUZZY"), True),
    "cores": (detail("host", "cores", value=999), True),
    "gpus": (detail("host", "gpus", value=[{"name": "NVIDIA H200"}]), True),
    "host": (detail("host", "alias", value="h200-1"), True),
    "versions": (detail("versions", "torch", value="9.9"), True),
    "outcome": (detail("pristine", 0, "outcome", value="healthy"), True),
    "seconds": (detail("pristine", 0, "seconds", value=1000.0), True),
    "exit code": (detail("pristine", 0, "exit_code", value=1), True),
    "sentinel": (detail("patched", 0, "sentinel", value="BUG_REPRODUCED"), True),
    "reason": (detail("reason", value="all is well"), True),
    "result": (stated("predicate", "result", value="FAILED"), True),
    "failed tests": (stated("predicate", "failedTests", value=[]), True),
    "passed tests": (stated("predicate", "passedTests", value=[]), True),
    "schema version": (detail("schema_version", value=1), True),
    "started in 2031": (lambda root, three: everywhere(three[-1], started="2031-01-01T00:00:00Z"), True),
    "started": (detail("started", value="2026-11-21T14:00:00Z"), True),
    "started before its predecessor": (lambda root, three: everywhere(three[-1], started="2026-11-21T08:00:00Z"), True),
    "no predecessor": (detail("previous", value=None), True),
    "no predecessor in both": (lambda root, three: everywhere(three[-1], previous=None), True),
    "predecessor of another pack": (of_another_pack, True),
    "newest deleted": (deleted(-1), False),
    "folder deleted": (deleted(0, 1, 2), False),
    "oldest deleted": (deleted(0), True),
    "name's time": (renamed(1, "20261121T120000Z"), True),
    "oldest named as the newest": (renamed(0, "20261121T200000Z"), True),
    "in another pack's folder": (copied("08"), True),
    "in a folder of no pack": (copied("99"), True),
    "middle one edited, its successor chained anew": (chained_anew, False),
}


def test_what_was_written_is_whole(desk):
    root, manifest, three = desk
    assert (len(three), verify_all(root), heads.lost(manifest, root)) == (3, {}, [])
    chain = [both(path)[0]["predicate"]["patchlane"]["previous"] for path in three]
    assert chain == [None, *(hashlib.sha256(path.read_bytes()).hexdigest() for path in three[:2])]


@pytest.mark.parametrize("name", RECEIPTS)
def test_what_is_changed_is_seen(desk, name):
    root, manifest, three = desk
    change, alone = RECEIPTS[name]
    change(root, three)
    assert bool(verify_all(root)) == alone
    if name not in ("in another pack's folder", "in a folder of no pack"):  # these take nothing away
        (row,) = heads.lost(manifest, root)
        assert row.startswith("receipts/07: ") and row.endswith("git checkout HEAD -- receipts/07")
        with pytest.raises(PatchlaneError):
            heads.refuse_loss(manifest, root, None)


def test_what_is_missing_is_named(desk):
    root, manifest, three = desk
    deleted(0, 2)(root, three)
    (row,) = heads.lost(manifest, root)
    assert three[0].stem in row and three[2].stem in row and three[1].stem not in row


def test_what_is_about_to_be_imported_is_not_lost(desk, made):
    root, manifest, three = desk
    deleted(2)(root, three)
    heads.refuse_loss(manifest, root, made / "receipts")


def test_a_further_receipt_is_no_loss(desk, made):
    root, manifest, three = desk
    deleted(2)(root, three)
    manifest.write_text(Manifest(packs={}, receipts=heads.heads(root)).text)
    assert heads.lost(manifest, made / "receipts") == []


@pytest.mark.parametrize("text", ["<<<<<<< ours\n", "receipts: 1\n", "[]\n", "receipts: {'07': {}}\n", "", None])
def test_a_manifest_that_does_not_say_what_there_was_hides_no_loss(desk, text):
    root, manifest, _ = desk
    manifest.unlink() if text is None else manifest.write_text(text)
    (row,) = heads.lost(manifest, root)
    assert row.endswith("; fix: git checkout HEAD -- manifest.yaml")
    with pytest.raises(PatchlaneError, match="--accept"):
        heads.refuse_loss(manifest, root, None)


def test_before_the_first_receipt_there_is_no_manifest(tmp_path):
    assert heads.lost(tmp_path / "manifest.yaml", tmp_path) == []


def altered(path):
    path.write_text(path.read_text().replace('"measured": 1.0', '"measured": 0.001', 1))


def truncated(path):
    path.write_bytes(path.read_bytes()[:500])


def without_log(path):
    path.with_suffix(".log").unlink()


@pytest.mark.parametrize("change", [altered, truncated, without_log])
@pytest.mark.parametrize("reader", [receipts.read, receipts.statement_of, receipts.digests])
def test_no_reader_gets_a_receipt_that_is_not_whole(desk, change, reader):
    _, _, three = desk
    reader(three[-1])
    change(three[-1])
    with pytest.raises(PatchlaneError) as refused:
        reader(three[-1])
    assert three[-1].name in refused.value.what and refused.value.remedy == "python -m reproducers.run pack07"


def test_a_committed_receipt_is_brought_back_by_git(desk, monkeypatch):
    root, _, three = desk
    monkeypatch.setattr(shelf, "COMMITTED", root)
    assert shelf.remedy(three[-1]) == "git checkout HEAD -- receipts/07"  # a missing predecessor as well


@pytest.fixture
def committed(desk, monkeypatch):
    """The folder of receipts in a repository whose commit has a manifest of them, proved by today's verifier."""
    root, manifest, three = desk
    monkeypatch.setattr(heads, "ROOT", root.parent)
    chains = heads.heads(root)
    manifest.write_text(Manifest(verifier=engine.digest(engine.VERIFIER), packs={}, receipts=chains).text)
    git("init", "-q", cwd=root.parent)
    return root, manifest, three


def commit(root):
    git("add", "-A", cwd=root.parent)
    git("commit", "-qm", "all", cwd=root.parent)


def test_what_the_last_commit_names_is_proved_and_nothing_else(committed):
    root, manifest, three = committed
    assert heads.proved(root) == frozenset(), "nothing is committed"
    commit(root)
    digests = {file_sha256(path) for path in three}
    assert heads.proved(root) == digests
    manifest.unlink()
    assert heads.proved(root) == digests, "only what is committed counts"
    shutil.copy(three[0], three[0].with_name(three[0].name.replace("bench", "other")))
    assert heads.proved(root) == digests
    body, log = both(three[1])
    seal(three[1], body | {"predicateType": "other"}, log)
    assert heads.proved(root) == frozenset(), "none of a folder in which one was altered"


@pytest.mark.parametrize("verifier", [None, "0" * 64])
def test_what_another_verifier_proved_is_proved_again(committed, verifier):
    root, manifest, _ = committed
    manifest.write_text(Manifest(verifier=verifier, packs={}, receipts=heads.heads(root)).text)
    commit(root)
    assert heads.proved(root) == frozenset()


def test_verify_of_the_committed_receipts_names_what_the_manifest_has_and_they_have_not(desk, monkeypatch):
    root, _, three = desk
    monkeypatch.setattr(verb, "COMMITTED", root)
    monkeypatch.setattr(schema, "ROOT", root.parent)
    monkeypatch.setattr(verification, "ROOT", root.parent)
    (root.parent / "packs" / "07_toy").mkdir(parents=True)
    assert CliRunner().invoke(verb.app, ["verify", str(root)]).exit_code == 0
    three[-1].unlink(), three[-1].with_suffix(".log").unlink()
    done = CliRunner().invoke(verb.app, ["verify", str(root)])
    assert (done.exit_code, three[-1].stem in done.output) == (1, True), done.output
