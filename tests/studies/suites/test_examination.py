"""A toy's own tests on both trees: every word that a test can get, each by a test that earns it."""

import pytest
from own_tests import ONE, examined, publish_tests
from toy import PUBLISHED, Toy

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.evidence import shelf
from reproducers.record.schema import load_needs
from reproducers.studies.suites import examination, keeping
from reproducers.studies.suites.examination import Asked, Examiner
from reproducers.upstream import pins
from reproducers.upstream.store import tree_digest

pytestmark = pytest.mark.rest  # starts dozens of interpreters

CORE = """
import socket
from pathlib import Path

import pytest
from toyup import core

SEEN = Path({seen!r})


def test_mean():
    assert core.mean([1, 3]) == 2


def test_total():
    assert core.total([1, 2]) == 3


def test_first_refuses():
    with pytest.raises(ValueError):
        core.first([])


def test_wrong_anyway():
    assert core.mean([]) == 1


@pytest.mark.xfail
def test_expected_to_fail():
    assert core.total([1, 2]) == 3


@pytest.mark.skip(reason="wants two GPUs")
def test_skipped():
    pass


def test_second_run_fails():
    SEEN.write_text(SEEN.read_text() + "." if SEEN.exists() else ".")
    assert len(SEEN.read_text()) != 2


@pytest.fixture
def at_the_end():
    yield
    assert core.first([1]) and core.total([1]) == 0, "left behind"


def test_torn_down(at_the_end):
    pass


def test_there_is_no_network():
    with pytest.raises(OSError, match="without a network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


if core.total([1]) == 1:

    def test_of_one_tree():
        pass
"""
CRASH = (
    "import os\nfrom toyup import core\n\n\ndef test_before():\n    pass\n\n\ndef test_dies():\n    os.abort()\n\n\n"
)
FILES = {
    "tests/test_core.py": CORE,
    "tests/test_crash.py": CRASH + "def test_after():\n    pass\n",
    "tests/test_hang.py": "import time\nfrom toyup import core\n\n\ndef test_hangs():\n    time.sleep(600)\n",
    "tests/test_import.py": "from toyup import core\n\nassert core.total([1]) == 0\n\n\ndef test_one():\n    pass\n",
    "tests/test_other.py": "import sys\nsys.path.insert(0, 'other')\nimport toyup.core\n\n\ndef test_x():\n    pass\n",
    "other/toyup/__init__.py": "",
    "other/toyup/core.py": "",
    "toyup/core.py": "raise RuntimeError('the code under test comes from the tree alone')\n",
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """One run over all of the toy's test files, with what it said as it went."""
    toy = Toy(tmp_path_factory.mktemp("suites"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "COMMITTED", toy.root / "committed")
        pack = toy.pack()
        toy.publish()
        publish_tests(toy, FILES | {"tests/test_core.py": CORE.format(seen=str(toy.root / "seen"))})
        patch.setattr(examination, "ALONE", 1)  # so that both ways of running again are taken
        said = []
        found = examined(toy, pack, *(name for name in FILES if name.startswith("tests/")), said=said)
        return found, said


def word(seen, test):
    return next(row for row in seen[0].outcomes if row.test.endswith(test))


@pytest.mark.parametrize(
    ("test", "compared"),
    [
        ("test_core.py::test_mean", "passed both"),
        ("test_core.py::test_total", "mended"),
        ("test_core.py::test_first_refuses", "broken"),
        ("test_core.py::test_wrong_anyway", "failed both"),
        ("test_core.py::test_expected_to_fail", "mended"),
        ("test_core.py::test_skipped", "skipped both"),
        ("test_core.py::test_second_run_fails", "flaky"),
        ("test_core.py::test_torn_down", "broken"),
        ("test_core.py::test_there_is_no_network", "passed both"),
        ("test_core.py::test_of_one_tree", "not compared"),
        ("test_crash.py::test_before", "passed both"),
        ("test_crash.py::test_dies", "not compared"),
        ("test_crash.py::test_after", "not compared"),
        ("test_hang.py::test_hangs", "not compared"),
        ("test_import.py::test_one", "broken"),
        ("test_other.py", "not compared"),
    ],
)
def test_each_word_is_earned(seen, test, compared):
    assert word(seen, test).compared == compared, word(seen, test)


def test_nothing_else_is_there(seen):
    assert len(seen[0].outcomes) == 16


def test_why(seen):
    assert "DID NOT RAISE" in word(seen, "test_first_refuses").patched.error
    assert word(seen, "test_torn_down").patched == word(seen, "test_torn_down").again[1]
    assert word(seen, "test_torn_down").patched.outcome == "error"
    assert word(seen, "test_torn_down").patched.error.startswith("AssertionError: left behind")
    assert word(seen, "test_skipped").pristine.error == "Skipped: wants two GPUs"
    assert word(seen, "test_second_run_fails").again[1].outcome == "passed"
    assert word(seen, "test_of_one_tree").pristine.error == "not collected on this tree"
    assert word(seen, "test_dies").patched.outcome == "crashed" and "SIGABRT" in word(seen, "test_dies").patched.error
    assert word(seen, "test_after").patched.outcome == "not run"
    assert word(seen, "test_hangs").patched.outcome == "timed out" and "hung" in word(seen, "test_hangs").patched.error
    assert word(seen, "test_import.py::test_one").patched.error == "AssertionError: assert 1.0 == 0"
    assert "imported from another place" in word(seen, "test_other.py").pristine.error


def test_a_crash_or_a_hang_costs_only_its_file(seen):
    ended = {(run.path.rpartition("/")[2], run.arm): run.ended for run in seen[0].runs}
    assert ended["test_core.py", "patched"] == ended["test_import.py", "pristine"] == "finished"
    assert ended["test_crash.py", "patched"] == "crashed" and ended["test_hang.py", "pristine"] == "timed out"
    assert seen[0].runs[0].imported == ["toyup/core.py"]


def test_the_verdict_names_what_is_broken(seen):
    verdict, reason = seen[0].ruling
    assert verdict is Verdict.FIX_REGRESSES
    assert "breaks 3 tests of upstream's: test_core.py::test_first_refuses, test_core.py::test_torn_down" in reason


def test_progress_is_a_line_a_file_and_tree(seen):
    lines = [line for line in seen[1] if not line.startswith("pack07 again")]
    assert len(lines) == 10 and lines[0].startswith("pack07 pristine tests/test_core.py: 5 passed, 3 failed, ")
    assert [line for line in seen[1] if "again, alone" in line and "flaky" in line]


def test_nothing_is_left_in_the_store(seen):
    found = seen[0]
    assert {tree_digest(tree.path) == tree.digest for tree in (found.tree, found.patched, found.tests)} == {True}


def test_files_are_those_listed_else_those_of_the_same_name(toy):
    pack = toy.pack()
    toy.publish()
    publish_tests(toy, {"tests/test_core.py": ONE, "tests/test_more.py": ONE})
    assert {run.path for run in examined(toy, pack).runs} == {"tests/test_core.py"}
    page = toy.packs / "upstream_tests.yaml"
    page.write_text("7:\n- path: tests/test_more.py\n")
    assert {run.path for run in examined(toy, pack).runs} == {"tests/test_more.py"}
    page.write_text("7:\n- {path: tests/test_more.py, lanes: [cuda]}\n")
    with pytest.raises(CannotTestHere, match="no file for the cpu lane"):
        examined(toy, pack)
    page.write_text("7:\n- path: tests/test_gone.py\n")
    with pytest.raises(PatchlaneError, match=r"has no tests/test_gone\.py"):
        examined(toy, pack)
    page.write_text("7:\n- path: ../test_more.py\n")
    with pytest.raises(PatchlaneError, match=r"upstream_tests.yaml:2: 7.0.path"):
        examined(toy, pack)


def test_a_file_of_two_packs_runs_once_on_the_pristine_tree(toy, monkeypatch):
    pack, started = toy.pack(), []
    real = examination.run_file
    monkeypatch.setattr(
        examination, "run_file", lambda bench, *rest: started.append(bench.root.name) or real(bench, *rest)
    )
    toy.publish()
    publish_tests(toy, {"tests/test_core.py": ONE})
    examiner = Examiner(toy.store, Asked(), lambda text: text, lambda line: None)
    runs = [examiner.examine(pack).runs for _ in range(2)]
    assert len(started) == 3 and runs[0][0] == runs[1][0] and runs[0][0].imported == ["toyup/core.py"]


def test_tests_that_import_nothing_of_the_patch_say_nothing(toy):
    pack = toy.pack()
    toy.publish()
    publish_tests(toy, {"tests/test_core.py": "def test_x():\n    pass\n"})
    verdict, reason = examined(toy, pack).ruling
    assert verdict is Verdict.UNTESTABLE and "imported code of the patch" in reason


def test_an_empty_module_stands_in_for_what_is_listed_and_absent_only(toy):
    pack, test = toy.pack(), "import absent_ext, json\n\n\ndef test_json():\n    assert json.loads('1') == 1\n"
    toy.publish()
    publish_tests(toy, {"tests/test_core.py": ONE.replace("\n", "\n" + test, 1)})
    assert {row.compared for row in examined(toy, pack).outcomes} == {"failed both"}
    (toy.packs / "upstream_tests.yaml").write_text("7:\n- {path: tests/test_core.py, stand_ins: [absent_ext, json]}\n")
    found = examined(toy, pack)
    assert {row.compared for row in found.outcomes} == {"passed both"}
    assert [run.stand_ins for run in found.runs] == [["absent_ext"]] * 2


DEP = "dep: [{distribution: dep, release: '1.0'}]\n"
DEPS = PUBLISHED + "dep:\n  '1.0':\n    artifacts: {dep-1.0-py3-none-any.whl: " + "c" * 64 + "}\n"
NEEDING = """import os
from dep import ANSWER
from toyup import core


def test_both():
    assert core.mean([ANSWER]) == 42
    assert os.environ["LD_PRELOAD"].endswith("libcublaslt_shim.so")
"""


def test_a_file_has_what_it_lists_beside_the_pins_needs_and_the_shim_in_it_first(toy, monkeypatch):
    pack = toy.pack()
    toy.publishes(DEPS, DEP)
    toy.publish()
    toy.publish({"dep.py": "ANSWER = 42\n", "libcublaslt_shim.so": ""}, pins.need_set_key(load_needs(toy.packs)["dep"]))
    publish_tests(toy, {"tests/test_core.py": NEEDING})
    assert {row.compared for row in examined(toy, pack).outcomes} == {"failed both"}
    page = toy.packs / "upstream_tests.yaml"
    page.write_text("7:\n- {path: tests/test_core.py, cuda_needs: [dep]}\n")
    assert {row.compared for row in examined(toy, pack).outcomes} == {"failed both"}  # on the cpu lane
    monkeypatch.setattr(Examiner, "_needs", lambda self, file: file.cuda_needs)
    found = examined(toy, pack, timeout_s=60)
    assert {row.compared for row in found.outcomes} == {"passed both"}, found.outcomes
    assert [run.needs for run in found.runs] == [["dep"]] * 2
    assert len(keeping.record(found, "toy-1", []).needs) == 1
    page.write_text("7:\n- {path: tests/test_core.py, cuda_needs: [gone]}\n")
    with pytest.raises(PatchlaneError, match=r"needs.yaml has no set gone"):
        examined(toy, pack)


def test_a_commit_that_is_out_of_reach_says_how_to_get_it(toy):
    with pytest.raises(CannotTestHere, match="--upstream CLONE"):
        examined(toy, toy.pack())
