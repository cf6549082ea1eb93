"""What no check runs of the functions that a patch changes."""

import pytest
from toy import FIRST, TOTAL, edited
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere
from patchlane.base.exits import Exit
from reproducers import reach
from reproducers.record import schema
from reproducers.record.receipt import Compiled, Executed
from reproducers.studies import reach as study
from reproducers.trial.experiment import Request

LONG = "    return result\n", "    if len(values) > 99:\n        result = -1.0\n        del values\n    return result\n"


@pytest.fixture
def reached(toy, monkeypatch):
    """The lines that the verb prints of pack 7, whose patch makes ``edits`` in upstream as it is or as ``before``."""
    monkeypatch.setattr(schema, "ROOT", toy.root)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("COLUMNS", "200")

    def of(*edits):
        toy.pack(toy.patch(edited(*edits)))
        toy.publish()
        done = CliRunner().invoke(reach.app, ["7"], catch_exceptions=False)
        return done.exit_code, (done.stdout + done.stderr).splitlines()

    return of


def test_lines_of_changed_functions_that_ran_in_no_check_are_named(reached):
    code, said = reached(TOTAL, FIRST, LONG)
    assert code == Exit.OK
    assert "pack07 cpu: 7 of 10 statements of 2 changed functions ran" in said[0]
    assert [line.split(": ")[-1] for line in said[1:]] == ["no check runs lines 10-11", "no check runs lines 44"]


def test_a_pack_that_cannot_run_is_told_with_its_code(reached):
    code, said = reached(TOTAL, FIRST, ("def mean(values):", "def mean(:"))
    assert code == Exit.CANNOT_TEST
    assert "pack07" in said[0]


def test_a_pack_without_a_patch_is_told_with_a_command(toy):
    pack = toy.pack()
    pack.patch.unlink()
    with pytest.raises(CannotTestHere) as raised:
        study.measure(pack, Request(), toy.store, lambda arm, line: None)
    assert raised.value.remedy == "python -m reproducers.run --list"


FILE = '''import functools


class Kept:
    """One."""

    @functools.cache
    def one(self):
        def inner():
            return 2

        return inner

    def other(self):
        return 3


if True:

    def kernel(x):
        y = x + 1
        return y
'''


def test_functions_are_taken_whole(tmp_path):
    """With what lies in them, in classes and under conditions; of a kernel what a compiler took has run."""
    (tmp_path / "a.py").write_text(FILE)
    one, kernel = study.touched(tmp_path, "a.py", [[10, 10], [21, 21]])
    assert (one.name, sorted(one.statements)) == ("Kept.one", [(9, 9), (10, 10), (12, 12)])
    assert (kernel.name, sorted(kernel.statements)) == ("kernel", [(21, 21), (22, 22)])
    ran = Executed(lines=[9, 12], functions={}, compiled=[Compiled(compiler="triton", first=20, last=22, sha256="")])
    assert (one.unrun(ran), kernel.unrun(ran)) == ([(10, 10)], [])
    assert one.unrun(None) == sorted(one.statements)
    assert [*study.touched(tmp_path, "none.py", [[1, 9]])] == []
