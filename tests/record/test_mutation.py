"""A mutation score says nothing that its mutants, its names, its log or the manifest do not say too."""

import hashlib
import json
from pathlib import Path

import pytest

from patchlane.base.clock import today
from patchlane.base.files import record_bytes
from reproducers.evidence import heads, shelf, verification
from reproducers.kept import archive
from reproducers.record import mutation
from reproducers.record.entry import Manifest
from reproducers.record.mutation import MutationScore, Tally, in_order, log_of
from reproducers.record.schema import ROOT
from reproducers.studies.mutation.score import write

KEPT = max(mutation.records(ROOT / "receipts" / "09"), key=lambda path: len(mutation.read(path).mutants))


def counted(body):
    """The counts made anew, as a forger would."""
    for how in ("hand", "generated"):
        mine = [mutation.Tried.model_validate(one) for one in body["mutants"] if one["how"] == how]
        body[how] = Tally.of(mine).model_dump(mode="json") if mine else None
    drawn = sum(one["how"] == "generated" for one in body["mutants"])
    body |= {"known": drawn, "sample": None}
    return body


def put(path, body):
    """The record under the name that its content gives, with its log as it was."""
    data = record_bytes(counted(body))
    there = path.with_name(f"{path.stem.rpartition('_')[0]}_{hashlib.sha256(data).hexdigest()[:12]}.json")
    log = path.with_suffix(".log")
    path.unlink()
    there.write_bytes(data)
    if log.is_file():
        log.rename(there.with_suffix(".log"))
    return there


def test_what_no_check_refuses_is_no_kill():
    """A hunk that does not run refuses any mutant; such records of before APART have them among the killed."""
    body = json.loads(KEPT.read_text()) if KEPT.is_file() else mutation.read(KEPT).model_dump(mode="json")
    one = mutation.Tried.model_validate(killed(body))
    idle = {"verdict": "INCONCLUSIVE", "reason": "patched code not seen executing: a.py hunk 2", "caught_by": []}
    tried = [one, mutation.Tried.model_validate(one.model_dump() | idle | {"name": "constant-00000000"})]
    apart, before = Tally.of(tried), Tally.of(tried, apart=False)
    assert (apart.killed, apart.refused, apart.score) == (1, 1, 0.5)
    assert (before.killed, before.refused, before.score) == (2, None, 1.0)


def survivor(body):
    return next(one for one in body["mutants"] if one["verdict"] == "REPRODUCED_AND_FIXED")


def killed(body, how="generated"):
    return next(one for one in body["mutants"] if one["how"] == how and one["caught_by"])


def say_killed(body):
    survivor(body).update(verdict="FIX_REGRESSES", explained=False)


def say_killed_and_why(body):
    survivor(body).update(verdict="FIX_REGRESSES", explained=False, reason="", caught_by=["guard"])


def say_survived(body):
    killed(body).update(verdict="REPRODUCED_AND_FIXED")


def drop(body):
    body["mutants"].remove(killed(body))


def rename(body):
    one = killed(body)
    one["name"] = one["name"].partition("-")[0] + "-00000000"


def rename_by_hand(body):
    killed(body, "hand")["name"] = "other"


def rename_freely(body):
    killed(body)["name"] = "my mutant"


def tell_twice(body):
    body["mutants"].append(killed(body))


BY_ITSELF = [say_killed, say_survived, rename_by_hand, rename_freely, tell_twice]  # no other witness is needed
BY_ANOTHER = [say_killed_and_why, drop, rename]


@pytest.fixture
def kept(tmp_path):
    """(folder, manifest, a kept record of schema_version 1 in it, alone)."""
    root = tmp_path / "receipts"
    (root / "09").mkdir(parents=True)
    path = root / "09" / KEPT.name
    path.write_bytes(archive.data(KEPT))
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(Manifest(packs={}, receipts=heads.heads(root)).text)
    return root, manifest, path


@pytest.fixture
def logged(tmp_path):
    """(folder, path) of the same mutants as they are kept today."""
    body = counted(json.loads(archive.data(KEPT)))
    drawn = {one["name"]: one for one in body["mutants"] if one["how"] == "generated"}
    body["mutants"] = [one for one in body["mutants"] if one["how"] == "hand"]
    body["mutants"] += [drawn[name] for name in in_order(list(drawn), 0)]
    score = MutationScore.model_validate(body | {"seed": 0}).logged()
    return tmp_path / "new", write(score, tmp_path / "new", {})


def test_every_kept_score_is_whole():
    paths = shelf.scores(ROOT / "receipts")
    assert paths and {path: rows for path in paths if (rows := mutation.faults(path))} == {}
    assert heads.unnamed(ROOT / "manifest.yaml", ROOT / "receipts") == []


@pytest.mark.parametrize("change", BY_ITSELF)
def test_what_a_score_says_against_itself_is_named(kept, change):
    body = json.loads(kept[2].read_bytes())
    change(body)
    assert mutation.faults(put(kept[2], body))


@pytest.mark.parametrize("change", BY_ANOTHER)
def test_the_manifest_is_the_witness_of_earlier_scores(kept, change):
    root, manifest, path = kept
    assert heads.unnamed(manifest, root) == heads.lost(manifest, root) == []
    body = json.loads(path.read_bytes())
    change(body)
    forged = put(path, body)
    assert forged.stem in "".join(heads.unnamed(manifest, root)) and path.stem in "".join(heads.lost(manifest, root))


@pytest.mark.parametrize("change", [*BY_ITSELF, *BY_ANOTHER])
def test_its_log_is_the_witness_of_a_score(logged, change):
    path = logged[1]
    assert mutation.faults(path) == []
    body = json.loads(path.read_bytes())
    change(body)
    assert mutation.faults(put(path, body))


def test_another_name_has_another_place_even_where_the_log_is_rewritten(logged):
    body = json.loads(logged[1].read_bytes())
    rename(body)
    log = log_of(body["mutants"])
    body["log_sha256"] = hashlib.sha256(log).hexdigest()
    path = put(logged[1], body)
    path.with_suffix(".log").write_bytes(log)
    assert "order" in mutation.faults(path)[0]


def test_a_score_without_its_log_or_of_an_earlier_version_with_one(logged):
    path = logged[1]
    path.with_suffix(".log").unlink()
    assert path.with_suffix(".log").name in mutation.faults(path)[0]
    body = json.loads(path.read_bytes())
    assert "log_sha256" in mutation.faults(put(path, body | {"schema_version": 1}))[0]


def test_a_score_of_the_future_is_named(logged, monkeypatch):
    root, path = logged
    score = mutation.read(path)
    later = write(score.model_copy(update={"started": "2099-01-01T00:00:00Z"}), root, {})
    assert verification.verify_all(root) == {later: ["its day is in the future: 2099-01-01"]}
    assert Path(later).is_file() and today().year < 2099
