"""Answers of receipts, and the ranges that answers in a row give."""

import pytest
from toy import REPRODUCER, SOURCE, TOTAL, edited, write_tree

from reproducers.evidence import receipts
from reproducers.probe.checks import judge
from reproducers.record import engine
from reproducers.record.schema import load_pack
from reproducers.studies.versions import answers
from reproducers.studies.versions.answers import Answer, Word, affected

WORDS = {"b": Word.BUG, "h": Word.HEALTHY, "-": Word.ABSENT, "?": Word.CANNOT}


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        ("", ["no tree shows the bug"]),
        ("h?h-", ["no tree shows the bug"]),
        ("b", ["0 (1 show the bug; nothing known before it; nothing known after it)"]),
        ("-bbh", ["1 to 2 (2 show the bug; before it 0 code not there; after it 3 healthy)"]),
        (
            "h?b?b?h",
            [
                "2 to 4 (2 show the bug; before it not testable: 1; before it 0 healthy; after it not testable: 5;"
                " after it 6 healthy; inside it not testable: 3)"
            ],
        ),
        (
            "bhb",
            [
                "0 (1 show the bug; nothing known before it; after it 1 healthy)",
                "2 (1 show the bug; before it 1 healthy; nothing known after it)",
            ],
        ),
        (
            "?????b",
            [
                "5 (1 show the bug; before it not testable: 0 to 4 (5 of them); nothing known before it;"
                " nothing known after it)"
            ],
        ),
    ],
)
def test_the_range_of_answers_in_a_row(row, lines):
    assert affected([Answer(str(place), WORDS[mark], "") for place, mark in enumerate(row)]) == lines


@pytest.fixture
def out(toy, monkeypatch):
    """A function that runs the toy at its live pin, writes the receipt, and says what receipts know of a release."""
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    folder = toy.root / "out"

    def kept(source=None, tree="1.0", repeats=1, lane="cpu", **request):
        if source is not None:
            receipts.write(toy.run(load_pack(toy.folder), source, **request), folder, "toy", [], {})
        return answers.kept(load_pack(toy.folder), lane, tree, [toy.root / "none", folder], repeats)

    toy.pack()
    return kept


def test_a_receipt_of_either_arm_answers_for_its_tree_only(toy, out):
    assert out() is None
    found = out(SOURCE)  # of both arms: what the pristine one saw
    assert (found.word, found.repeats, found.kept) == (Word.BUG, 1, True) and found.receipt_name.startswith("07/")
    assert out(tree="1.1") is None and out(lane="cuda") is None and out(repeats=2) is None
    receipts.write(toy.run(load_pack(toy.folder), arm="pristine", repeats=2), toy.root / "none", "toy", [], {})
    assert out(repeats=2).repeats == 2
    write_tree(toy.folder, {"reproducer.py": REPRODUCER + "\n"})
    assert out() is None


def test_a_receipt_that_is_not_whole_is_passed_over(toy, out):
    found = out(SOURCE)
    found.receipt.with_suffix(".log").write_text("another")
    assert out() is None


def test_what_could_not_be_tested_is_asked_again_by_another_engine(out, monkeypatch):
    broken = {**SOURCE, "toyup/core.py": "def total(:\n"}
    assert out(broken).word is Word.CANNOT
    monkeypatch.setattr(engine, "digest", lambda: "f" * 64)
    assert out() is None


def test_a_folder_as_it_stands_answers_for_no_release(toy, out):
    assert out(edited(TOTAL), upstream=toy.upstream) is None


CHECKS = {  # {(name or pattern, states of total and first, state of a guard): the answer}
    ("total", "bug", "healthy", "passed"): Word.BUG,
    ("first", "bug", "healthy", "passed"): Word.HEALTHY,
    ("first", "different", "healthy", "passed"): Word.HEALTHY,
    ("first", "healthy", "different", "passed"): Word.CANNOT,
    ("first", "healthy", "skipped", "passed"): Word.CANNOT,
    ("*t*", "bug", "healthy", "passed"): Word.BUG,
    ("*t*", "healthy", "healthy", "passed"): Word.HEALTHY,
    ("*t*", "healthy", "skipped", "passed"): Word.CANNOT,
    ("first", "bug", "healthy", "failed"): Word.CANNOT,
    ("mean", "bug", "healthy", "passed"): Word.CANNOT,  # a guard
    ("tot", "bug", "healthy", "passed"): Word.CANNOT,
}


@pytest.mark.parametrize(("case", "word"), CHECKS.items(), ids=str)
def test_one_check_alone(out, case, word):
    (arm,) = receipts.statement_of(out(SOURCE, arm="pristine").receipt).details.pristine
    pattern, *states = case
    names = dict(zip(("total", "first", "mean"), states, strict=True))
    checks = [check.model_copy(update={"state": names.get(check.name, check.state)}) for check in arm.checks]
    outcome, reason = judge([check for check in checks if check.role == "bug"])
    arm = arm.model_copy(update={"checks": checks, "outcome": outcome, "reason": reason})
    found, why = answers.of_arms([arm], None, pattern)
    assert found is word and why
    if pattern == "tot":
        assert "'total', 'first'" in why
    killed = arm.model_copy(update={"outcome": "different", "reason": "the pristine arm changed a file"})
    assert answers.of_arms([killed], None, pattern)[0] is Word.CANNOT


def test_repeats_that_disagree_are_no_answer(out):
    run = out(SOURCE, arm="pristine")
    body = receipts.statement_of(run.receipt).details
    (bug,) = body.pristine
    healthy = bug.model_copy(update={"outcome": "healthy", "checks": []})
    assert answers.of_arms([bug, healthy], None) == (Word.CANNOT, "repeats disagree: bug, healthy")
