"""What a verb says of itself: the command that goes on after an interrupt, and the name it was called by."""

import sys

import pytest

from reproducers.base import cli
from reproducers.base.errors import PatchlaneError
from reproducers.record.schema import ROOT


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(cli, "_left", [])
    monkeypatch.setattr(cli, "SPOKEN", {})


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([str(ROOT / "reproducers/audit.py"), "--python", "a b"], "python -m reproducers.audit --python 'a b'"),
        ([str(ROOT / "model/train.py"), "x"], "python -m model.train x"),
        ([str(ROOT / "model/data/__main__.py")], "python -m model.data"),
        (["patchlane run", "7"], "patchlane run 7"),
    ],
)
def test_an_interrupted_verb_names_the_command_that_goes_on(monkeypatch, argv, command):
    monkeypatch.setattr(sys, "argv", argv)
    first, fix = cli.interrupted().splitlines()
    assert first.startswith("interrupted: ") and fix == f"  fix: {command}"


def test_what_is_left_and_what_to_add_come_from_the_verb(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["patchlane run", "7"])
    cli.leaves(lambda: ("2 receipts in there", ["--missing-from", "there"]))
    assert cli.interrupted() == "interrupted: 2 receipts in there\n  fix: patchlane run 7 --missing-from there"
    monkeypatch.setattr(sys, "argv", ["patchlane run", "7", "--missing-from", "there"])
    assert cli.interrupted().endswith("fix: patchlane run 7 --missing-from there")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_typers_own_end_after_an_interrupt_says_it_too(monkeypatch, capsys, kind):
    def app():
        raise KeyboardInterrupt if kind is KeyboardInterrupt else SystemExit(130)

    monkeypatch.setattr(sys, "argv", ["patchlane audit"])
    with pytest.raises(SystemExit) as ended:
        cli.guarded(app)
    assert ended.value.code == 130 and capsys.readouterr().err.endswith("  fix: patchlane audit\n")


def test_a_remedy_names_a_verb_as_it_was_called(monkeypatch, capsys):
    def app():
        raise PatchlaneError("no", "python -m reproducers.upstream_tests pack09, then python -m pytest")

    said = []
    for spoken in ({}, {"reproducers.upstream_tests": "upstream-tests"}):
        monkeypatch.setattr(cli, "SPOKEN", spoken)
        with pytest.raises(SystemExit):
            cli.guarded(app)
        said.append(capsys.readouterr().err.splitlines()[-1])
    tail = "pack09, then python -m pytest"
    assert said == [f"  fix: python -m reproducers.upstream_tests {tail}", f"  fix: patchlane upstream-tests {tail}"]
