"""A mutant is a diff of the patched tree, and counts only where the check that it names catches it."""

import pytest
from ready import MEAN, MUTANT
from toy import FIRST, SOURCE, TOTAL, edited, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.desk.start import mutants
from reproducers.desk.text import dossier
from reproducers.evidence.receipts import statement
from reproducers.studies.mutation import ablation
from reproducers.trial.experiment import Request
from reproducers.upstream.pins import pin_tree

FIXED = edited(TOTAL, FIRST)["toyup/core.py"]


@pytest.fixture
def pack(toy, monkeypatch):
    """The toy pack, its tree in the store that the verbs take."""
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    made = toy.pack()
    toy.publish()
    return made


def mutant(toy, pack, change, caught_by="mean"):
    text = MUTANT.replace("mean", caught_by, 1) + toy.patch(
        edited(change, core=FIXED), {**SOURCE, "toyup/core.py": FIXED}
    )
    write_tree(pack.folder, {"mutants/wrong.patch": text})
    return mutants.read(pack.folder / "mutants/wrong.patch")


def ran(toy, pack, wrong):
    tree = pin_tree(toy.store, pack, pack.pins["live"])
    return ablation.attempt(pack, mutants.whole(pack, tree, wrong), Request())


@pytest.mark.parametrize(
    ("change", "verdict", "caught"),
    [
        (MEAN, Verdict.FIX_REGRESSES, ["mean"]),
        (("in values:\n        result", "in values[1:]:\n        result"), Verdict.FIX_INEFFECTIVE, ["total"]),
        (("return count + 1", "return count + 2"), Verdict.REPRODUCED_AND_FIXED, []),
    ],
)
def test_which_checks_catch_a_wrong_fix(toy, pack, change, verdict, caught):
    run = ran(toy, pack, mutant(toy, pack, change))
    unseen = Verdict.INCONCLUSIVE if not caught else verdict  # the last is code that nothing runs
    assert (run.ruling.verdict, mutants.caught(run)) == (unseen, caught)


def test_a_check_is_named_by_its_name_or_by_a_glob(toy, pack):
    names = ["mean", "total [all]", "total of two"]
    assert mutant(toy, pack, MEAN, "total*").catching(names) == ["total [all]", "total of two"]
    assert mutant(toy, pack, MEAN, "total [all]").catching(names) == ["total [all]"]
    assert mutant(toy, pack, MEAN, "median").catching(names) == []


@pytest.mark.parametrize(
    "text",
    ["", "Caught-By: mean\n", "Why: x\n\n{diff}", "Caught-By: mean\n\n{diff}", "caught by mean\nWhy: x\n\n{diff}"],
)
def test_a_mutant_that_is_not_whole_is_refused(toy, pack, text):
    path = mutant(toy, pack, MEAN).path
    path.write_text(text.format(diff=path.read_text().partition("\n\n")[2]))
    with pytest.raises(PatchlaneError):
        mutants.read(path)


def test_a_mutant_of_another_fix_is_refused_by_name(toy, pack):
    wrong = mutant(toy, pack, MEAN)
    wrong.path.write_text(wrong.path.read_text().replace("     if not values:", "     if no values:"))
    with pytest.raises(PatchlaneError) as refused:
        ran(toy, pack, wrong)
    assert "07_toy/mutants/wrong.patch" in refused.value.what and refused.value.remedy == mutants.REBASE


def test_nobody_upstream_gets_a_mutant_and_no_receipt_names_it(desk):
    from reproducers.record.schema import load_pack

    pack = load_pack(desk.folder)
    before = dossier.sums(dossier.files(pack, desk.root / "receipts", "comment"))
    run = desk.run(pack)
    before_mutant = statement(run, "toy", [], None)
    write_tree(pack.folder, {"mutants/wrong.patch": MUTANT + "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"})
    assert dossier.sums(dossier.files(pack, desk.root / "receipts", "comment")) == before
    assert statement(run, "toy", [], None) == before_mutant


def test_ablate_fails_where_a_mutant_is_not_caught_by_its_check(toy, pack, monkeypatch):
    from typer.testing import CliRunner

    from reproducers import ablate

    monkeypatch.setattr(ablate, "load_named", lambda names: [pack])
    monkeypatch.setattr(ablate, "ablations", lambda pack: [])
    mutant(toy, pack, MEAN)
    assert CliRunner().invoke(ablate.app, ["pack07"]).exit_code == 0
    mutant(toy, pack, MEAN, "total")
    assert CliRunner().invoke(ablate.app, ["pack07"]).exit_code == 1
