"""The toy's mutants tried: who is killed, who survives, what is kept, and how the verb ends."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import pytest
from ready import MEAN, MUTANT
from toy import DEAD, FIRST, SOURCE, SUM, TOTAL, edited, listing, write_tree
from typer.testing import CliRunner

from patchlane.base.clock import today
from patchlane.base.errors import CannotTestHere
from patchlane.base.exits import Exit
from reproducers import mutate
from reproducers.base.verdicts import Verdict
from reproducers.evidence import shelf, table, verification
from reproducers.record import mutation
from reproducers.record.entry import Entry
from reproducers.record.receipt import Check
from reproducers.studies.mutation import trying
from reproducers.studies.mutation.score import write
from reproducers.studies.mutation.sitting import Asked, chosen, sit
from reproducers.trial import experiment
from reproducers.trial.rulings import Ruling

pytestmark = pytest.mark.rest  # starts dozens of interpreters

LOOSE = ("result = 0.0\n    for value in values[1:]:", "result = 0.0 if values else 5.0\n    for value in values:")
FIXED = edited(LOOSE, FIRST)  # no check looks at the sum or the first value of an empty list
LOOSE_ONES = [
    "result = 0.0 if values else 0.0",
    "result = 0.0 if values else 4.0",
    "result = 0.0 if values else 6.0",
    "result = 0.0 if True else 5.0",
    "return values",
]


@pytest.fixture
def pack(toy, monkeypatch):
    """A pack whose checks leave something unseen, its tree in the store that the verbs take."""
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    made = toy.pack(toy.patch(FIXED))
    toy.publish()
    monkeypatch.setattr(mutate, "load_named", lambda names: [made])
    return made


@pytest.fixture
def arms(monkeypatch):
    """The trees of the arms that were run, in a list."""
    real, seen = experiment.run_arm, []

    def run_arm(spec, sink):
        seen.append(spec.tree)
        return real(spec, sink)

    monkeypatch.setattr(experiment, "run_arm", run_arm)
    return seen


def verb(toy, *args):
    """(exit code, what the verb printed, its newest record)."""
    done = CliRunner().invoke(mutate.app, ["pack07", "--receipts", str(toy.root / "out"), "--no-census", *args])
    kept = sorted((toy.root / "out").rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    code = done.exception.exit_code if hasattr(done.exception, "exit_code") else done.exit_code
    return code, done.output, mutation.read(kept[-1]) if kept else None


def loose(pack):
    """{name: line} of the mutants that no check of the toy sees."""
    found = {}
    for mutant, _ in chosen(pack, Asked()).generated:
        line = mutant.after.splitlines()[mutant.line - 1].strip()
        if line in LOOSE_ONES and (mutant.scope == "first") == (line == "return values"):
            found[mutant.name] = line
    assert sorted(found.values()) == sorted(LOOSE_ONES)
    return found


def explain(pack, names, **more):
    rows = [{"name": name, "reason": "A toy's reason.", **more} for name in names]
    write_tree(pack.folder, {mutation.EQUIVALENT: json.dumps({"schema_version": 1, "equivalent": rows})})


def hand_written(toy, pack, change=MEAN, caught_by="mean"):
    diff = toy.patch(edited(change, core=FIXED["toyup/core.py"]), {**SOURCE, **FIXED})
    write_tree(pack.folder, {"mutants/wrong.patch": MUTANT.replace("mean", caught_by, 1) + diff})


def test_another_right_fix_is_accepted_and_one_that_is_refused_is_told(toy, pack):
    assert verb(toy, "--only", "alternatives")[0] == Exit.USAGE  # there is none
    right = edited(
        ("result = 0.0\n    for value in values[1:]:", "result = 0.0\n    for value in list(values):"), FIRST
    )
    other = edited(("result = 0.0\n    for value in values[1:]:", "result = 1.0\n    for value in values:"), FIRST)
    write_tree(pack.folder, {"alternatives/copied.patch": "Why: It copies first.\n\n" + toy.patch(right)})
    code, said, score = verb(toy, "--only", "alternatives")
    assert code == Exit.OK and score.hand is score.generated is None
    assert score.alternative == mutation.Others(all=1, accepted=1, refused=[], untested=0)
    assert "1 of 1 alternatives accepted" in score.cell
    seldom = edited(
        (
            "result = 0.0\n    for value in values[1:]:",
            "if len(values) > 9999:\n        return 0.0 + sum(values)\n    " + "result = 0.0\n    for value in values:",
        ),
        FIRST,
    )
    write_tree(pack.folder, {"alternatives/seldom.patch": "Why: It adds many at once.\n\n" + toy.patch(seldom)})
    code, said, score = verb(toy, "--only", "alternatives")
    assert code == Exit.OK and (score.alternative.accepted, score.alternative.unseen) == (2, 1)
    assert "1 of them with lines that did not run" in score.cell
    write_tree(pack.folder, {"alternatives/one.patch": "Why: It begins at one.\n\n" + toy.patch(other)})
    code, said, score = verb(toy, "--only", "alternatives")
    assert code == Exit.CONTRADICTED and score.alternative.refused == ["one"]
    assert "alternatives/one.patch" in said.splitlines()[-3]
    write_tree(pack.folder, {"mutants/one.patch": MUTANT + toy.patch(right)})
    assert verb(toy, "--only", "alternatives")[0] == Exit.USAGE  # a name is one patch's
    (pack.folder / "mutants/one.patch").unlink()
    write_tree(pack.folder, {"alternatives/one.patch": toy.patch(right)})
    assert verb(toy, "--only", "alternatives")[0] == Exit.USAGE  # its header lacks the line


@pytest.fixture
def taken(monkeypatch):
    """The trees of the census arms that were run, in a list."""
    real, seen = experiment.run_arm, []

    def run_arm(spec, sink):
        if spec.census:
            seen.append(spec.tree)
        return real(spec, sink)

    monkeypatch.setattr(experiment, "run_arm", run_arm)
    return seen


def test_the_pristine_trees_census_is_taken_once_however_many_ask_at_once(toy, pack, taken):
    right = edited(
        ("result = 0.0\n    for value in values[1:]:", "result = 0.0\n    for value in list(values):"), FIRST
    )
    for name in ("one", "two"):
        diff = toy.patch({path: f"{text}\n# {name}\n" for path, text in right.items()})
        write_tree(pack.folder, {f"alternatives/{name}.patch": f"Why: It copies first, as {name}.\n\n{diff}"})
    code, _, score = verb(toy, "--only", "alternatives", "--census", "--jobs", "3")
    assert code == Exit.OK and score.alternative.accepted == 2
    assert len(taken) == 4 and len(set(taken)) == 4  # of the pristine tree, of the pack's patch, of each alternative


def test_a_pack_whose_own_census_is_refused_judges_no_mutant(toy, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    placed = edited((TOTAL[0], "values[0 if 'site-packages' in __file__ else 1 :]:"), FIRST)
    worse = toy.pack(toy.patch(placed))
    toy.publish()
    monkeypatch.setattr(mutate, "load_named", lambda names: [worse])
    right = toy.patch(edited(TOTAL, FIRST))
    write_tree(worse.folder, {"alternatives/right.patch": f"Why: It asks for no place.\n\n{right}"})
    assert verb(toy, "--only", "alternatives")[0] == Exit.OK
    (toy.root / "out").rename(toy.root / "before")
    assert verb(toy, "--only", "alternatives", "--census")[::2] == (Exit.CONTRADICTED, None)


def test_what_no_check_sees_survives_until_it_is_explained(toy, pack, arms):
    code, said, score = verb(toy)
    names = loose(pack)
    assert code == Exit.CONTRADICTED and set(score.generated.survivors) == set(names)
    assert score.generated.all == score.known == len(score.mutants) and score.hand is None
    assert score.generated.killed == score.known - len(names) >= 5
    for name, line in names.items():
        assert f"survivor {name} at toyup/core.py:" in said and f"{line}\n" in said.partition(name)[2]
    assert "total of a zero and a two" in said, "the checks that ran are named"
    killers = {check for one in score.mutants for check in one.caught_by}
    assert {"total", "first", "total of a zero and a two"} <= killers
    assert len(arms) == 2 + score.known, "the pristine arm runs once, and each mutant's patched arm"

    explain(pack, names)
    arms.clear()
    code, said, score = verb(toy)
    assert code == Exit.OK and score.generated.survivors == [] and score.generated.score == 1.0
    assert score.generated.explained == len(names) and "(100.0%)" in said
    assert len(arms) == 2, "what became of the mutants is known"
    assert list((toy.root / "store" / "mutants").iterdir()) == []

    killed = next(one.name for one in score.mutants if one.killed)
    explain(pack, [*names, killed])
    code, said, _ = verb(toy)
    assert code == Exit.CONTRADICTED and f"{killed}: stale: it is no equivalent, it is caught by" in said
    explain(pack, [*names, "constant-gone"])
    code, said, _ = verb(toy)
    assert code == Exit.CONTRADICTED and "constant-gone: stale: there is no such mutant" in said
    assert verb(toy, "--only", "hand")[0] == Exit.CONTRADICTED, "also where none is tried"
    explain(pack, names, lane="cuda")
    assert verb(toy)[0] == Exit.CONTRADICTED, "another lane's reason is none here"
    explain(pack, names, lane="cpu")
    assert verb(toy)[0] == Exit.OK


def test_another_reproducer_tries_every_mutant_anew(toy, pack, arms):
    verb(toy, "--sample", "1")
    arms.clear()
    pack.reproducer.write_text(pack.reproducer.read_text() + "\n# a check more\n")
    verb(toy, "--sample", "1")
    assert len(arms) == 3


def test_a_hand_written_mutant_has_to_be_caught_by_what_it_names(toy, pack):
    hand_written(toy, pack)
    code, said, score = verb(toy, "--only", "hand")
    assert code == Exit.OK and "pack07 hand: 1 of 1 killed" in said and score.generated is None
    assert (score.mutants[0].caught_by, score.mutants[0].verdict) == (["mean"], Verdict.FIX_REGRESSES)
    hand_written(toy, pack, caught_by="total")
    code, said, _ = verb(toy, "--only", "hand")
    assert code == Exit.CONTRADICTED and "not caught by total, which it names, but by mean" in said


def test_a_mistake_in_a_line_that_the_lane_cannot_run_survives(toy, monkeypatch):
    """No check sees it, and that nothing ran it is known before."""
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    made = toy.pack(toy.patch(edited(TOTAL, FIRST, (SUM, DEAD))), record=listing("result = -1.0"))
    toy.publish()
    monkeypatch.setattr(mutate, "load_named", lambda names: [made])
    code, _, score = verb(toy)
    dead = {m.name for m, _ in chosen(made, Asked()).generated if "-        result" in m.diff and "-1.0" in m.diff}
    found = {tried.name: tried.verdict for tried in score.mutants if tried.name in dead}
    assert found and set(found.values()) == {Verdict.REPRODUCED_AND_FIXED}
    assert code == Exit.CONTRADICTED and dead <= set(score.generated.survivors)


def test_a_pack_that_does_not_hold_is_no_ground(toy, pack, arms):
    pack.patch.write_text(toy.patch(edited(LOOSE)))
    code, _, score = verb(toy)
    assert (code, score, len(arms)) == (Exit.CONTRADICTED, None, 2)


def test_what_could_not_be_tested_is_neither_killed_nor_kept(toy, pack, monkeypatch):
    real = trying.attempt

    def attempt(ground, candidate):
        run = real(ground, candidate)
        run.ruling = Ruling(Verdict.UNTESTABLE, "no space left")
        return run

    monkeypatch.setattr(trying, "attempt", attempt)
    code, said, score = verb(toy, "--sample", "2")
    assert code == Exit.CANNOT_TEST and said.count("could not be tested") == 2
    assert (score.generated.killed, score.generated.untested, score.generated.score) == (0, 2, 0.0)
    monkeypatch.undo()
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    assert sit(pack, Asked(sample=2), lambda line: None).tried[0].tested


def test_a_host_that_cannot_run_the_pack_says_so(toy, pack):
    with pytest.raises(CannotTestHere):
        sit(pack, Asked(lane="cuda"), lambda line: None)


def test_a_sample_is_the_same_for_a_seed_and_grows(pack):
    def names(**asked):
        return [candidate.name for candidate in chosen(pack, Asked(**asked)).candidates]

    whole = names()
    assert len(set(whole)) == len(whole) and names(sample=len(whole)) == whole
    assert names(sample=4, seed=3) == names(sample=4, seed=3) != names(sample=4, seed=4)
    assert set(names(sample=4, seed=3)) < set(names(sample=5, seed=3)) < set(whole)
    assert names(sample=4, seed=3) == names(seed=3)[:4]


def test_none_is_begun_when_the_time_is_over(toy, pack, monkeypatch):
    hand_written(toy, pack)
    clock = itertools.count()  # a second passes from one look to the next: 0 is the start
    monkeypatch.setattr(trying, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(
        trying,
        "outcome",
        lambda ground, candidate: trying.Outcome(
            verdict=Verdict.FIX_REGRESSES, reason="", caught_by=["mean"], checks=[]
        ),
    )
    code, _, score = verb(toy, "--within", "6", "--jobs", "1", "--seed", "3")
    names = [one.name for one in chosen(pack, Asked(seed=3)).candidates]
    assert code == Exit.OK and [one.name for one in score.mutants] == names[: len(score.mutants)]
    assert (score.sample, score.seed, score.hand.all) == (score.generated.all, 3, 1)
    assert 0 < score.generated.all < score.known


def test_an_arm_that_ends_at_its_first_failing_check_kills_the_same_mutants(pack, monkeypatch):
    early = {one.name: one for one in sit(pack, Asked(), lambda line: None).tried}
    real = trying.with_patch_of
    whole = lambda pack, run, bench: real(pack, run, dataclasses.replace(bench, until=None))  # noqa: E731
    monkeypatch.setattr(trying, "with_patch_of", whole)
    monkeypatch.setattr(trying, "file_sha256", lambda path: path.name)  # another key than that of what is kept
    late = {one.name: one for one in sit(pack, Asked(), lambda line: None).tried}
    assert any(len(one.caught_by) > 1 for one in late.values())
    for name, one in early.items():
        assert one.killed == late[name].killed, name
        assert one.caught_by in (late[name].caught_by, late[name].caught_by[:1]), name
    assert any(len(one.caught_by) < len(late[name].caught_by) for name, one in early.items())


def test_list_tries_none(toy, pack, arms):
    hand_written(toy, pack)
    code, said, score = verb(toy, "--list")
    assert (code, score, arms) == (0, None, []) and "pack07 wrong  mutants/wrong.patch  The mean is of two" in said
    line = "result = 0.0 if values else"
    assert f"toyup/core.py:6 total  {line} 5.0 -> {line} 6.0\n" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("equivalent: []\n", "schema_version"),
        ("schema_version: 1\nequivalent:\n- {name: a}\n", "equivalent.0.reason"),
        ("schema_version: 1\nequivalent:\n- {name: a, reason: b}\n- {name: a, reason: b}\n", "explained twice: a"),
        ("[", "equivalent.yaml:2"),
    ],
)
def test_explanations_that_are_not_whole_are_refused(toy, pack, text, said):
    write_tree(pack.folder, {mutation.EQUIVALENT: text})
    done = CliRunner().invoke(mutate.app, ["pack07"])
    assert done.exception.exit_code == Exit.USAGE and said in done.exception.what


def test_a_kept_score_is_evidence_and_no_statement(toy, pack, monkeypatch):
    monkeypatch.setattr(verification, "ROOT", toy.root)
    *_, score = verb(toy, "--only", "generated", "--sample", "3", "--keep", "--host", "desk-1")
    path = next((toy.root / "committed").rglob("*.json"))
    assert path.parent.name == "07" and mutation.NAME.match(path.name) and "_desk-1_" in path.name
    assert str(toy.root / "store") not in path.read_text()
    assert shelf.every(toy.root / "committed") == [] and shelf.scores(toy.root / "committed") == [path]
    assert verification.verify_all(toy.root / "committed") == {}
    assert mutation.newest(pack, toy.root / "committed") == score

    entry = Entry(title="", kind="bug", state="draft", live="", lanes={}, lanes_without_receipt=[], tried={})
    cells = [cell.strip() for cell in table.row(pack, entry, {}).split("|")]
    assert cells[-4] == f"{score.generated.killed}/3, 3 of {score.known} drawn"

    whole = {"sample": None, "seed": None, "known": 3}
    later = score.model_copy(update={"started": f"{today()}T23:59:58Z", **whole})
    least = score.model_copy(update={"started": f"{today()}T23:59:59Z", "mutants": [], "generated": None})
    least = least.logged()
    for one in (later, least):
        write(one, toy.root / "committed", {})
    assert mutation.newest(pack, toy.root / "committed") == later, "a score of all mutants outweighs one of some"
    for extra in mutation.records(path.parent)[1:]:
        extra.unlink(), extra.with_suffix(".log").unlink()

    unlike = write(score.model_copy(update={**whole, "known": 9}), toy.root / "committed", {})
    assert "3 were tried, and 9 were to be" in mutation.faults(unlike)[0]
    unlike.unlink(), unlike.with_suffix(".log").unlink()

    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"killed": ', b'"killed": 1'))
    rows = verification.verify_all(toy.root / "committed")[path]
    assert "altered" in rows[0] and "not those of its mutants" in rows[1]
    path.write_bytes(whole)
    astray = path.with_name("mutation_best.json")
    astray.write_bytes(whole)
    assert verification.verify_all(toy.root / "committed") == {
        astray: ["its name is not mutation_TIME_HOST_DIGEST.json"]
    }
    astray.unlink()
    pack.reproducer.write_text(pack.reproducer.read_text() + "\n# another\n")
    assert table.row(pack, entry, {}).split("|")[-4].strip() == "–", "a score of another reproducer says nothing"


def test_only_checks_that_ran_are_named(toy, pack, monkeypatch):
    real = trying.attempt

    def attempt(ground, candidate):
        run = real(ground, candidate)
        run.patched[-1].checks.append(Check(name="on a GPU", role="guard", state="skipped"))
        return run

    monkeypatch.setattr(trying, "attempt", attempt)
    sitting = sit(pack, Asked(sample=1), lambda line: None)
    assert "mean" in sitting.results[0][1].checks and "on a GPU" not in sitting.results[0][1].checks
