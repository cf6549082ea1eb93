"""The verb: exit codes, JSON, and what lands where."""

import json

import pytest
from own_tests import BROKEN, ONE, publish_tests

pytestmark = pytest.mark.rest  # starts dozens of interpreters


@pytest.fixture
def verb(toy):
    repo = toy.repository(toy.pack())
    toy.publish()
    (repo / "docs").mkdir()

    def run(*args, test=ONE):
        publish_tests(toy, {"tests/test_core.py": test})
        process = toy.verb(repo, "upstream_tests", "pack07", "--host", "toy-1", *args)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    run.repo, run.toy = repo, toy
    return run


def test_codes(verb):
    code, out, err = verb("--json")
    assert code == 0, err
    assert json.loads(out)[0]["outcomes"][0]["compared"] == "passed both"
    assert "1 test of upstream's pass with the patch" in err
    assert len(list(verb.repo.glob("build/receipts/07/upstream-tests_*_toy-1_*.json"))) == 1
    code, out, err = verb("--keep", test=BROKEN)
    assert code == 1 and "FIX_REGRESSES" in out and "Failed: DID NOT RAISE" in out, err
    assert len(list(verb.repo.glob("receipts/07/upstream-tests_*_toy-1_*.json"))) == 1
    assert receipts_verify(verb) == "pack07 live cpu: the patch breaks 1 test of upstream's: test_core.py::test_first"
    code, out, err = verb(test="import no_such_module\n")
    assert code == 77 and "No module named 'no_such_module'" in out and "UNTESTABLE" in out, err


def receipts_verify(verb):
    """What `receipts verify` says of the records beside the receipts, of which there is none here."""
    process = verb.toy.verb(verb.repo, "receipts", "verify", "receipts")
    lines = process.communicate(timeout=60)[0].splitlines()
    manifest, broken, count = lines  # the toy's repository has no manifest, which is told too
    assert "manifest.yaml" in manifest and count == "0 receipts and 1 record of upstream's tests, 0 faulty"
    return broken


def test_bad_input(verb):
    assert verb("--lane", "gpu")[0] == 2
    assert verb("--tests", "tests/none.py")[0] == 2
    assert verb("--at", "nowhere")[0] == 2
    assert verb("--take", "nowhere")[0] == 2
