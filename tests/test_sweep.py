"""A sweep over the toy's releases: one that does not import and one that hangs change no other answer."""

import json

import many_releases
import pytest
from toy import FIRST, REPRODUCER, SOURCE, TOTAL, edited, git, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from reproducers import sweep
from reproducers.evidence import verification
from reproducers.evidence.manifest import affected
from reproducers.evidence.shelf import chain
from reproducers.record.schema import load_pack

pytestmark = pytest.mark.rest  # starts dozens of interpreters


def swept(*args, code=0):
    done = CliRunner().invoke(sweep.app, ["7", "--json", *args], catch_exceptions=False)
    assert done.exit_code == code, done.stderr
    return json.loads(done.stdout)[0], done.stderr


def test_every_release_has_its_answer_and_receipt(released):
    found, said = swept("--timeout", "3")
    assert {row["tree"]: row["answer"] for row in found["answers"]} == many_releases.ANSWERS
    why = {row["tree"]: row["why"] for row in found["answers"]}
    assert "SyntaxError" in why["1.1"] and "hung" in why["1.3"] and "no module" in why["0.8"]
    (line,) = found["affected"]
    assert line.startswith(
        "1.0 to 1.2 (2 show the bug; before it 0.9 healthy; after it not testable: 1.3; after it 1.4"
    )
    assert "inside it not testable: 1.1" in line and "a pre-release: 2.0rc1" in said
    assert found["contradicted"] == []
    assert found["proposed"] == ["pack07: set pins.fixed to release 1.4: it and each later one tried is healthy"]

    folder = released.root / "build/receipts"
    assert verification.verify_all(folder) == {} and len(chain(folder / "07")) == len(many_releases.ANSWERS)
    tried = affected(load_pack(released.folder), chain(folder / "07"))
    assert {tree: word.value for tree, word in tried.items()} == {
        "0.9": "FIXED_UPSTREAM",
        "1.0": "REPRODUCED",
        "1.1": "DIFFERENT_FAILURE",
        "1.2": "REPRODUCED",
        "1.4": "FIXED_UPSTREAM",
        "1.10": "FIXED_UPSTREAM",
    }
    details = [json.loads(path.read_text())["predicate"]["patchlane"] for path in chain(folder / "07")]
    last = ["pack07", "--at", "1.10", "--arm", "pristine", "--lane", "cpu", "--timeout", "3"]
    assert last in [receipt["command"] for receipt in details]

    again, _ = swept("--timeout", "3")
    assert [row["kept"] for row in again["answers"]] == [True] * len(many_releases.ANSWERS)
    assert [row["answer"] for row in again["answers"]] == [*many_releases.ANSWERS.values()]
    forced, _ = swept("--releases", "1.4", "--again")
    assert (forced["answers"][0]["kept"], len(chain(folder / "07"))) == (False, len(many_releases.ANSWERS) + 1)
    write_tree(released.folder, {"reproducer.py": REPRODUCER + "\n"})
    other, _ = swept("--releases", "1.4")
    assert other["answers"][0]["kept"] is False


def test_releases_are_named_allowed_or_the_newest(released):
    def trees(*args):
        return [row["tree"] for row in swept(*args)[0]["answers"]]

    assert trees("--releases", "1.4,0.9") == ["0.9", "1.4"]
    assert trees("--releases", "2.0rc1,0.9") == ["0.9", "2.0rc1"]
    assert trees("--releases", ">=1.4") == ["1.4", "1.10"]
    assert trees("--newest", "1") == ["1.10"]
    for wrong in ("7.7", "no such", ">=9"):
        with pytest.raises(PatchlaneError) as refused:
            swept("--releases", wrong)
        assert refused.value.remedy


def test_an_answer_that_contradicts_a_pin(released):
    (wheel,) = (released.root / "index").glob("toyup-1.2-*.whl")
    listed = (released.packs / "releases.yaml").read_text()
    released.publishes(f'{listed}  "1.2":\n    artifacts: {{{wheel.name}: {many_releases.sha256(wheel)}}}\n')
    record = (released.folder / "pack.yaml").read_text()
    record = record.replace("pins:\n", 'pins:\n  fixed:\n    release: "1.2"\n')
    write_tree(released.folder, {"pack.yaml": record})
    found, _ = swept("--releases", "1.2,1.4", code=1)
    assert found["contradicted"] == ["pack07 at 1.2: bug, and pack.yaml says healthy"]


def test_nothing_that_can_be_tested(released):
    found, _ = swept("--releases", "1.1", code=77)
    assert found["affected"] == ["no tree shows the bug"]


def test_commits_of_a_clone(released):
    clone = write_tree(released.root / "clone", SOURCE)
    git("init", "-q", cwd=clone)
    shas = []
    for files in (SOURCE, edited(TOTAL, FIRST)):
        write_tree(clone, files)
        git("add", "-A", cwd=clone)
        git("commit", "-qm", "next", cwd=clone)
        shas.append(git("rev-parse", "HEAD", cwd=clone).strip())
    found, _ = swept("--commits", f"{shas[0]},{shas[1][:9]}", "--upstream", str(clone))
    assert [(row["tree"], row["answer"]) for row in found["answers"]] == [(shas[0], "bug"), (shas[1], "healthy")]
    with pytest.raises(PatchlaneError):
        swept("--commits", "abc")
