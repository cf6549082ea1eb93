"""A written receipt verifies, and verify names every kind of tampering."""

import datetime
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from seeded import SEEDED
from toy import FIRST, TOTAL, body, edited
from typer.testing import CliRunner

import reproducers.receipts as verb
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.evidence import binding, receipts, shelf
from reproducers.evidence.receipts import redact, write
from reproducers.evidence.saving import places
from reproducers.evidence.verification import verify_all


@pytest.fixture
def chain(toy):
    """(folder of receipts, the two of one pack)."""
    run, root = toy.ran(toy.pack()), toy.root / "receipts"
    return root, [write(run, root, "toy-host", ["pack07"], places(toy.store)) for _ in range(2)]


def named(root, *words):
    """Whether one fault has all of these words."""
    return any(all(word in row for word in words) for rows in verify_all(root).values() for row in rows)


def rename_by_digest(path, body):
    """Write an altered statement under the name that its digest demands, with its log beside it."""
    data = (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
    stem = path.stem.rsplit("_", 1)[0] + "_" + hashlib.sha256(data).hexdigest()[:12]
    path.with_suffix(".log").rename(path.with_name(stem + ".log"))
    path.unlink()
    path.with_name(stem + ".json").write_bytes(data)
    return path.with_name(stem + ".json")


def altered(path, change):
    body = json.loads(path.read_text())
    change(body["predicate"]["patchlane"])
    return rename_by_digest(path, body)


def test_round_trip(chain):
    root, paths = chain
    assert verify_all(root) == {}
    first, second = (json.loads(path.read_text())["predicate"]["patchlane"] for path in paths)
    assert first["previous"] is None
    assert second["previous"] == file_sha256(paths[0])
    assert first["verdict"] == "REPRODUCED_AND_FIXED"


CASES = {
    "healthy": (edited(TOTAL), {}),
    "error outside a check": (None, {"reproducer": body("print('{not json'); 1 / 0")}),
    "no check": (None, {"reproducer": body("pass")}),
    "killed": (None, {"reproducer": body("os.kill(os.getpid(), 9)")}),
    "cannot test": (None, {"reproducer": body("raise probe.CannotTest('no')")}),
    "stale": (edited(TOTAL, FIRST), {"upstream": edited(("values[1:]", "values[2:]"))}),
    "repeats that disagree": (edited(TOTAL), {"reproducer": SEEDED, "request": {"repeats": 3}}),
    "patched alone": (None, {"request": {"arm": "patched"}}),
    "no lane": (None, {"request": {"lane": "cuda"}}),
    "unexecuted": (edited(TOTAL, FIRST, ("return count + 1", "return count")), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_verdict_verifies(toy, name):
    """No false alarm: the receipt of every kind of run verifies."""
    new, more = CASES[name]
    pack = toy.pack(new and toy.patch(new), **({"reproducer": more["reproducer"]} if "reproducer" in more else {}))
    run = toy.ran(pack, **({"source": more["upstream"]} if "upstream" in more else {}), **more.get("request", {}))
    write(run, toy.root / "receipts", "toy", [], places(toy.store))
    assert verify_all(toy.root / "receipts") == {}, run.ruling


def test_edited_statement(chain):
    root, (_, two) = chain
    two.write_text(two.read_text() + " ")  # only the digest in its name shows this
    assert list(verify_all(root)) == [two]


def test_edited_log(chain):
    root, (_, two) = chain
    log = two.with_suffix(".log")
    log.write_text(log.read_text().replace("BUG", "bug"))
    (row,) = verify_all(root)[two]
    assert log.name in row


def test_renamed(chain):
    root, (_, two) = chain
    renamed = two.rename(two.with_name("new.json"))
    assert set(verify_all(root)) == {renamed, two.with_suffix(".log")}
    assert named(root, "TIME_HOST_DIGEST.json")


def test_deleted_log(chain):
    root, (_, two) = chain
    log = two.with_suffix(".log")
    log.unlink()
    (row,) = verify_all(root)[two]
    assert log.name in row


def test_deleted_predecessor(chain):
    root, (first, second) = chain
    digest = file_sha256(first)
    first.unlink()
    first.with_suffix(".log").unlink()
    assert list(verify_all(root)) == [second] and named(root, digest[:12])


@pytest.mark.parametrize("word", ["FIXED_UPSTREAM", "REPRODUCED", "INCONCLUSIVE", "UNTESTABLE", "PATCH_STALE"])
def test_edited_verdict(chain, word):
    root, (_, two) = chain
    altered(two, lambda d: d.update(verdict=word))
    assert named(root, word, "REPRODUCED_AND_FIXED")


def test_verdict_made_up_without_arms(toy):
    run = toy.ran(toy.pack(), lane="cuda")
    path = write(run, toy.root / "receipts", "toy", [], {})
    altered(path, lambda d: d.update(verdict="REPRODUCED_AND_FIXED"))
    assert named(toy.root / "receipts", "REPRODUCED_AND_FIXED", "UNTESTABLE")


def test_edited_sentinels(toy):
    path = write(toy.ran(toy.pack(), arm="pristine"), toy.root / "receipts", "toy", [], {})
    altered(path, lambda d: d.update(sentinels=["BUG_REPRODUCED", "FIX_VALIDATED"]))
    assert named(toy.root / "receipts", "FIX_VALIDATED", "['BUG_REPRODUCED']")


def test_edited_check_with_all_names_and_digests_recomputed(chain):
    root, (_, two) = chain
    path = altered(two, lambda d: d["pristine"][0]["checks"][0].update(measured=2.0))
    (row,) = verify_all(root)[path]
    assert "pristine" in row and "checks" in row


def test_dropped_arm(chain):
    root, (_, two) = chain
    altered(two, lambda d: d.update(patched=[], patch=None, verdict="REPRODUCED", sentinels=["BUG_REPRODUCED"]))
    assert named(root, "log", "more", "patched")


def test_altered_predecessor_breaks_the_chain(chain):
    root, (first, _) = chain
    digest = file_sha256(first)
    altered(first, lambda d: d.update(command=["pack08"]))
    assert named(root, digest[:12])


def test_malformed(chain):
    root, (_, two) = chain
    two.write_text("{}")
    assert named(root, "malformed")


def test_leftovers_of_a_killed_writer_are_no_receipts(chain):
    root, (_, two) = chain
    for path in (two, two.with_suffix(".log")):
        shutil.copy(path, path.with_name(f".tmp-1-{path.name}"))
    shutil.copy(two, two.with_name(f".tmp-2-{two.name}"))
    assert verify_all(root) == {}


def test_an_import_that_was_broken_off_is_told_from_tampering(chain):
    root, (_, two) = chain
    two.unlink()
    assert [path.suffix for path in verify_all(root)] == [".log"]
    assert named(root, "python -m reproducers.manifest refresh SOURCE")


@pytest.mark.parametrize(("folder", "code"), [("none", 2), ("empty", 1), ("receipts", 0)])
def test_no_receipts_are_no_proof(chain, tmp_path, folder, code):
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(verb.app, ["verify", str(tmp_path / folder)])
    assert (getattr(done.exception, "exit_code", done.exit_code)) == code
    if code == 1:
        assert f"--receipts {tmp_path / folder}" in done.output


def test_a_run_that_started_earlier_and_ended_later_has_an_earlier_predecessor(chain, toy):
    root, _ = chain
    run = toy.ran(toy.pack())
    later, earlier = run.started + datetime.timedelta(minutes=9), run.started + datetime.timedelta(minutes=5)
    run.started = later
    written = [write(run, root, "toy-host", [], places(toy.store))]
    run.started = earlier
    written.append(write(run, root, "toy-host", [], places(toy.store)))
    assert verify_all(root) == {}
    assert receipts.read(written[1]).previous != file_sha256(written[0])


def test_a_damaged_neighbour_loses_no_receipt(chain, toy):
    root, (_, two) = chain
    two.write_text("{")
    path = write(toy.ran(toy.pack()), root, "toy-host", [], places(toy.store))
    assert path not in verify_all(root)


def test_the_next_writer_removes_what_a_killed_writer_left(chain, toy):
    root, (_, two) = chain
    left = two.with_name(f".tmp-1-{two.name}")
    left.write_text("x")
    write(toy.ran(toy.pack()), root, "toy-host", [], places(toy.store))
    assert not left.exists()


def test_files_under_a_folder_are_those_of_the_record():
    executed = {"a/b.py": {"lines": [1]}, "c.py": {"lines": []}}
    stated = {f"src/{name}": lines for name, lines in executed.items()}
    assert binding._in_tree(executed, stated) == stated
    assert binding._in_tree(executed, executed) == executed
    assert binding._in_tree({}, {}) == {}
    assert binding._in_tree(executed, {}) != {}


def test_a_reason_of_several_lines_is_one_entry():
    log = "[run] {}\n[patched] -> bug in 1.0 s, peak 0.10 GiB: one\ntwo\n[verdict] X: one\ntwo\n"
    who = [("run", "{}"), ("patched", "-> bug in 1.0 s, peak 0.10 GiB: one\ntwo"), ("verdict", "X: one\ntwo")]
    assert binding.entries(log) == who


def test_never_overwritten(tmp_path):
    path = tmp_path / "x.json"
    receipts._create(path, b"old")
    with pytest.raises(FileExistsError):
        receipts._create(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.json", b"old")]


def test_runs_that_end_alike_in_one_second_are_one_receipt(toy):
    """What does not count is no predecessor, so two such runs of a second have the same bytes."""
    run, root = toy.ran(toy.pack(), lane="cuda"), toy.root / "receipts"
    one, two = (write(run, root, "toy-host", ["pack07"], places(toy.store)) for _ in range(2))
    assert one == two and shelf.every(root) == [one] and verify_all(root) == {}
    assert {*one.parent.iterdir()} == {one, one.with_suffix(".log")}  # no lock nor scratch beside the evidence
    one.with_suffix(".log").write_text("altered")
    with pytest.raises(FileExistsError):
        write(run, root, "toy-host", ["pack07"], places(toy.store))
    assert one.with_suffix(".log").read_text() == "altered"


@pytest.mark.parametrize("home", ["home", "hôme"])
def test_no_path_of_this_machine(toy, monkeypatch, home):
    """Home, store, temporary folder, interpreter and checkout leave no trace in statement or log."""
    folder = toy.root / home
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    code = "print(os.environ['HOME'], os.getcwd(), sys.executable, sys.path); raise ValueError(os.environ['HOME'])"
    run = toy.ran(toy.pack(reproducer=body(code)))
    path = write(run, toy.root / "receipts", "toy", [str(folder / "clone")], places(toy.store))
    text = path.read_text() + path.with_suffix(".log").read_text()
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text)  # "vm" may be part of a folder's random name
    for secret in (str(toy.root), str(folder), str(shelf.ROOT), sys.prefix, home):
        assert secret not in text.replace("<home>", "")
        assert json.dumps(secret)[1:-1] not in text.replace("<home>", "")
    assert verify_all(toy.root / "receipts") == {}


def test_redact_longest_first():
    assert redact("/a/b/c /a/x", {"/a": "<one>", "/a/b": "<two>"}) == "<two>/c <one>/x"
    assert redact("/a/bc /a/b-2 /a/b.", {"/a": "<one>", "/a/b": "<two>"}) == "<one>/bc <one>/b-2 <two>."


def test_host_alias_is_checked(toy):
    for name in ("Node01.example.org", "", "-x", "a b"):
        with pytest.raises(PatchlaneError, match="host alias"):
            receipts.alias(name)


def test_upstream_folder_is_not_in_the_receipt(toy):
    """A checkout may lie anywhere, so its folder is a place of its own."""
    run = toy.ran(toy.pack(), arm="pristine", upstream=toy.upstream)
    known = places(toy.store, run.request.upstream)
    assert known[str(Path(toy.upstream))] == "<upstream>"
