"""The runner's command line: exit codes, formats, bisection, interrupts."""

import errno
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import processor
import psutil
import pytest
from tiers import sampled
from toy import FIRST, RECORD, REPRODUCER, SOURCE, TOTAL, body, edited, git, write_tree

from reproducers.base.verdicts import Verdict
from reproducers.evidence import saving
from reproducers.record.schema import ROOT
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.store import Store


@pytest.fixture
def repo(toy):
    """A copy of the engine whose only pack is the toy."""
    write_tree(toy.upstream, SOURCE)
    return toy.repository(toy.pack())


def run(toy, repo, *args, **more):
    process = toy.verb(repo, "run", *args, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def timed(*command):
    """Processor seconds of a command, and the finished process."""
    return processor.seconds_of(lambda: subprocess.run(command, cwd=ROOT, capture_output=True, text=True))


def test_list_is_quick_and_light():
    """It takes 1.7 times as long as the import of its libraries: 0.25 s on an idle machine."""
    command = ["-m", "reproducers.run", "--list"]
    libraries = ["-c", "import pydantic, rich.console, typer, yaml"]
    times = []
    for _ in range(5):
        seconds, done = timed(sys.executable, *command)
        assert done.returncode == 0 and "pack05" in done.stdout
        times.append(seconds / timed(sys.executable, *libraries)[0])
    imported = timed(sys.executable, "-X", "importtime", *command)[1].stderr
    names = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in imported.splitlines()}
    assert names.isdisjoint({"torch", "triton", "numpy", "requests", "psutil", "unidiff"})
    assert statistics.median(times) < 2.5, times


def test_a_mistyped_release_leaves_no_receipt(toy, index_url):
    ran = execute(toy.pack(), Request("9.9.9", "cpu"), Store(toy.root / "store", offline=False), lambda arm, line: None)
    assert ran.ruling.verdict is Verdict.UNTESTABLE and "no release 9.9.9" in ran.ruling.reason
    saving.Recorder(toy.root / "out", "toy", []).write(ran)
    assert not (toy.root / "out").exists()


def test_a_pack_that_begins_says_how_long_it_may_take(toy, repo):
    toy.publish()
    code, out, _ = run(toy, repo, "7")
    assert code == 0 and out.splitlines()[0] == "pack07: pristine and patched, up to 30 s of processor time each"


def test_a_cpu_run_has_a_census_unless_it_is_declined(toy, repo):
    toy.publish()
    for option, counted in (([], True), (["--no-census"], False)):
        assert run(toy, repo, "7", "--receipts", "out", *option)[0] == 0
        newest = max((repo / "out").rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        assert ("census" in json.loads(newest.read_text())["predicate"]["patchlane"]) is counted


def test_list_as_json(toy, repo):
    code, out, _ = run(toy, repo, "--list", "--json")
    rows = [{"id": "pack07", "title": "total forgets the first value", "kind": "bug", "lanes": ["cpu"]}]
    assert (code, json.loads(out)) == (0, rows)


def test_expected_verdict_json_junit_and_receipt(toy, repo):
    toy.publish()
    code, out, err = run(toy, repo, "pack07", "--upstream", str(toy.upstream), "--json", "--junitxml", "j.xml")
    assert code == 0, err
    (result,) = json.loads(out)
    assert (result["verdict"], result["expected"]) == ("REPRODUCED_AND_FIXED", ["REPRODUCED_AND_FIXED"])
    (suite,) = ElementTree.parse(repo / "j.xml").getroot()
    assert suite.get("name") == "pack07" and not list(suite.iter("failure"))
    cases = {(case.get("classname"), case.get("name")): case for case in suite}
    for arm in ("pristine", "patched"):
        names = {name for place, name in cases if place == f"pack07.cpu.{arm}"}
        assert names == {"arm", "total", "first", "total of a zero and a two", "mean"}
        assert float(cases[f"pack07.cpu.{arm}", "arm"].get("time")) > 0
    assert ("pack07.cpu", "verdict") in cases and len(suite) == 11
    root = ElementTree.parse(repo / "j.xml").getroot()
    for element in (root, suite):
        assert [element.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["11", "0", "0", "0"]
        assert float(element.get("time")) > 0
    (receipt,) = (repo / "build/receipts/07").glob("*.json")
    assert str(toy.upstream) not in receipt.read_text()


def test_contradicted(toy, repo):
    toy.publish(edited(TOTAL, FIRST))
    code, out, _ = run(toy, repo, "7", "--junitxml", "j.xml")
    assert code == 1
    assert "FIXED_UPSTREAM" in out
    assert "fix:" in out
    (suite,) = ElementTree.parse(repo / "j.xml").getroot()
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert (failed, suite.get("failures")) == (["verdict"], "1")


def test_a_healthy_folder_contradicts_nothing(toy, repo):
    write_tree(toy.upstream, edited(TOTAL, FIRST))
    code, out, err = run(toy, repo, "7", "--upstream", str(toy.upstream), "--json", "--junitxml", "j.xml")
    assert (code, json.loads(out)[0]["verdict"]) == (0, "FIXED_UPSTREAM"), err
    assert ElementTree.parse(repo / "j.xml").getroot().find("testcase/failure") is None
    (receipt,) = (repo / "build/receipts/07").glob("*.json")
    details = json.loads(receipt.read_text())["predicate"]["patchlane"]
    assert (details["at"], details["pin"]) == ("upstream", None)


def test_the_tree_taken_is_named(toy, repo):
    toy.publish()
    code, _, err = run(toy, repo, "7", "--at", "aaaaaaaaa", "--json")
    (row,) = [line for line in err.splitlines() if "aaaaaaaaa" in line]
    assert code == 0 and all(word in row for word in ("pack07", "live", "1.0"))
    (receipt,) = (repo / "build/receipts/07").glob("*.json")
    assert json.loads(receipt.read_text())["predicate"]["patchlane"]["at"] == "live"


@pytest.mark.parametrize("at", ["", "main", "33e2849f", "fixed"])
def test_an_unknown_tree_exits_2_and_leaves_no_receipt(toy, repo, at):
    code, _, err = run(toy, repo, "7", "--at", at)
    assert (code, "fix:" in err, (repo / "build/receipts").exists()) == (2, True, False)
    assert run(toy, repo, "7", "--at", at, "--bisect", cwd=repo)[0] == 125


def closed(process):
    """(exit code, errors) of a process whose output nobody reads."""
    process.stdout.close()
    errors = process.stderr.read()
    return process.wait(timeout=60), errors


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [["--list"], ["7"]])
def test_a_closed_pipe_is_an_interrupt(toy, repo, args, unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    toy.publish()
    code, errors = closed(toy.verb(repo, "run", *args))
    assert (code, "Traceback" in errors, "Exception" in errors) == (130, False, False), errors
    assert not list(repo.glob("build/receipts/*/*.json"))


def test_cannot_test(toy, repo):
    code, _, _ = run(toy, repo, "7", "--junitxml", "j.xml")
    assert code == 77, "offline with an empty store"
    (suite,) = ElementTree.parse(repo / "j.xml").getroot()
    assert [(case.get("name"), case[0].tag) for case in suite] == [("verdict", "skipped")]
    assert (suite.get("skipped"), suite.get("failures")) == ("1", "0")


@pytest.mark.parametrize(
    "args",
    [["pack99"], ["nonsense"], [], ["7", "--lane", "tpu"], ["7", "--arm", "left"], ["7", "--upstream", "/nowhere"]],
)
def test_usage(toy, repo, args):
    code, _, err = run(toy, repo, *args)
    assert code == 2
    assert "fix:" in err
    assert "Traceback" not in err


def test_a_broken_record_exits_2_with_file_and_line(toy, repo):
    write_tree(repo, {"packs/07_toy/pack.yaml": RECORD.replace("kind: bug", "kind: typo")})
    code, _, err = run(toy, repo, "7")
    assert code == 2
    assert "07_toy/pack.yaml:6: kind: " in err


def test_a_broken_record_stops_only_its_own_pack(toy, repo):
    write_tree(repo, {"packs/08_bad/pack.yaml": RECORD.replace("kind: bug", "kind: typo")})
    assert run(toy, repo, "7", "--upstream", str(toy.upstream))[0] == 0
    code, out, err = run(toy, repo, "--list")
    assert (code, len(out.splitlines())) == (2, 1) and "08_bad/pack.yaml" in err
    for args in (["8"], ["7", "8"], ["--all"]):
        code, _, err = run(toy, repo, *args, "--upstream", str(toy.upstream))
        assert code == 2 and "08_bad/pack.yaml" in err, args


def test_bisect_answers(toy, repo):
    for source, answer in ((SOURCE, 1), (edited(TOTAL, FIRST), 0), ({"toyup/__init__.py": ""}, 125)):
        subprocess.run(["rm", "-rf", str(toy.upstream)], check=True)
        write_tree(toy.upstream, source)
        assert run(toy, repo, "7", "--bisect", "--upstream", str(toy.upstream))[0] == answer


@pytest.mark.parametrize(
    "args", [["pack99"], ["7", "--upstream", "/nowhere"], ["7", "--lane", "tpu"], ["--help"], ["--list"], ["7", "--no"]]
)
def test_bisect_never_takes_a_mistake_for_a_bad_commit(toy, repo, args):
    assert run(toy, repo, *args, "--bisect")[0] == 125


@pytest.mark.parametrize("pinned", sampled([True, False], 2))
def test_git_bisect_finds_the_commit(toy, pinned):
    """Nine commits: the sixth brings the bug, the fifth cannot be imported; the pin may be one of them."""
    clone = toy.root / "clone"
    clone.mkdir()
    git("init", "-q", cwd=clone)
    good = edited(TOTAL, FIRST)
    for number in range(1, 10):
        files = SOURCE if number >= 6 else good
        if number == 5:
            files = {**good, "toyup/core.py": "def (:\n"}
        write_tree(clone, {**files, "count.txt": str(number)})
        git("add", "-A", cwd=clone)
        git("commit", "-qm", f"commit {number}", cwd=clone)
    record = RECORD
    if pinned:
        head, tail = RECORD.split("  live:\n")
        sha = git("rev-parse", "HEAD", cwd=clone).strip()
        record = f"{head}  live: {{sha: {sha}}}\n{tail[tail.index('lanes:') :]}"
    repo = toy.repository(toy.pack(record=record))
    git("bisect", "start", "HEAD", "HEAD~8", cwd=clone)
    environment = {**os.environ, "PYTHONPATH": str(repo), "PATCHLANE_STORE": str(toy.root / "store")}
    command = ["git", "bisect", "run", sys.executable, "-m", "reproducers.run", "7", "--bisect"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
    bad = git("log", "-1", "--format=%s", "refs/bisect/bad", cwd=clone).strip()
    assert bad == "commit 6", done.stdout + done.stderr
    if pinned:
        assert run(toy, repo, "7", "--bisect", "--at", sha[:10], cwd=clone)[0] == 1
        git("bisect", "reset", cwd=clone)
        git("checkout", "-q", "HEAD~8", cwd=clone)
        assert run(toy, repo, "7", "--bisect", cwd=clone)[0] == 0


SLOW = body("print('PID', os.getpid(), flush=True); subprocess.run(['sleep', '500'])")


@pytest.mark.parametrize("args", [["-v"], ["-v", "-n", "4"], ["--bisect"]])
def test_interrupt(toy, args):
    """SIGINT: code 130 soon, no child of the arm left, no receipt written, and no verdict on the killed arm."""
    write_tree(toy.upstream, SOURCE)
    repo = toy.repository(toy.pack(reproducer=SLOW))
    merged = toy.verb(repo, "run", "7", "--upstream", str(toy.upstream), *args, stderr=subprocess.STDOUT)
    line = next(line for line in merged.stdout if "PID" in line)
    arm = psutil.Process(int(line.split()[-1]))
    try:
        while not arm.children():
            time.sleep(0.01)
    except psutil.NoSuchProcess:
        pytest.fail(f"the arm ended by itself: {merged.communicate(timeout=300)[0]}")
    family = [arm, *arm.children(recursive=True)]
    assert len(family) == 2
    merged.send_signal(signal.SIGINT)
    try:
        out, _ = merged.communicate(timeout=300)  # less than the arm would take
    finally:
        merged.kill()
    assert merged.returncode == 130, out
    assert "Traceback" not in out and "DIFFERENT_FAILURE" not in out
    command = f"python -m reproducers.run {shlex.join(['7', '--upstream', str(toy.upstream), *args])}"
    assert "interrupted: " in out and out.rstrip().endswith(f"fix: {command}")
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    assert not list(repo.glob("build/receipts/*/*.json"))


def test_an_interrupt_names_the_receipts_that_are_kept_and_goes_on_from_them(toy):
    """SIGTERM in the second of two packs: the first one's receipt stays, and the command leaves it out."""
    toy.publish()
    toy.pack()
    repo = toy.repository(
        toy.pack(
            reproducer=SLOW.replace("pack=7", "pack=8"),
            record=RECORD.replace("number: 7", "number: 8"),
            folder="08_toy",
        )
    )
    merged = toy.verb(repo, "run", "7", "8", "-v", "--jobs", "1", stderr=subprocess.STDOUT)
    next(line for line in merged.stdout if "PID" in line)
    merged.send_signal(signal.SIGTERM)
    out, _ = merged.communicate(timeout=300)
    assert merged.returncode == 130, out
    assert "interrupted: 1 receipt of finished runs in build/receipts" in out
    assert out.rstrip().endswith("fix: python -m reproducers.run 7 8 -v --jobs 1 --missing-from build/receipts")
    assert len(list(repo.glob("build/receipts/07/*.json"))) == 1


def test_a_full_disk_under_the_output(toy):
    """Code 2 in one line, no thread's traceback, and no receipt of an arm whose messages nobody read."""
    write_tree(toy.upstream, SOURCE)
    repo = toy.repository(toy.pack())
    with Path("/dev/full").open("w") as full:
        done = toy.verb(repo, "run", "7", "-v", "--upstream", str(toy.upstream), stdout=full)
        _, err = done.communicate(timeout=300)
    assert done.returncode == 2, err
    assert os.strerror(errno.ENOSPC) in err and "Traceback" not in err
    assert not list(repo.glob("build/receipts/*/*.json"))


def test_several_packs_run_together(toy):
    toy.pack()
    pack = toy.pack(
        folder="08_toy",
        record=RECORD.replace("number: 7", "number: 8"),
        reproducer=REPRODUCER.replace("pack=7", "pack=8"),
    )
    write_tree(toy.upstream, SOURCE)
    code, out, err = run(toy, toy.repository(pack), "--all", "--json", "--upstream", str(toy.upstream))
    assert code == 0, err
    assert [row["pack"] for row in json.loads(out)] == ["pack07", "pack08"]
