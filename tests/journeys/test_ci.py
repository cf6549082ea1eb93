"""What a scheduler calls: the scripts of ci/, the halves of the suite, and how a run that was cut off goes on."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import ready
import tiers
import yaml
from toy import RECORD, REPRODUCER, TOTAL, edited, heed_interrupts
from typer.testing import CliRunner

from reproducers import mutate
from reproducers.evidence.receipts import write
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream.bundle import install
from reproducers.upstream.bundle import parts as bundle
from reproducers.upstream.store import Store


@pytest.fixture
def repo(toy):
    """A copy of the engine and of ci/ with packs 07 and 08; 08 waits as long as the file ``hold`` is there."""
    toy.pack()
    hold = str(toy.root / "hold")
    waiting = REPRODUCER.replace("pack=7", "pack=8").replace(
        "    core =",
        f"    import pathlib, time\n\n    while pathlib.Path({hold!r}).exists():\n        time.sleep(0.1)\n    core =",
    )
    made = toy.pack(reproducer=waiting, record=RECORD.replace("number: 7", "number: 8"), folder="08_toy")
    toy.publish()
    root = toy.repository(made)
    shutil.copytree(ROOT / "ci", root / "ci")
    return root


def environment(toy, **more):
    said = {"LANE": "cpu", "PYTHON": sys.executable, "BUNDLE": "", "JOBS": "1", "COLUMNS": "200"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PATCHLANE_")}
    return kept | said | {"PATCHLANE_STORE": str(toy.root / "store"), "PATCHLANE_OFFLINE": "1"} | more


def gpu(toy, repo, *args, **more):
    command = [str(repo / "ci" / "gpu"), *args]
    done = subprocess.run(command, cwd=toy.root, env=environment(toy, **more), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def receipts(folder, number="*"):
    return sorted(folder.glob(f"receipts/{number}/*.json"))


def test_a_batch_that_is_cut_off_goes_on_where_it_was(toy, repo):
    out, hold = toy.root / "out", toy.root / "hold"
    hold.touch()
    command = [str(repo / "ci" / "gpu"), "--out", "out", "7", "8"]
    script = subprocess.Popen(
        command, cwd=toy.root, env=environment(toy), start_new_session=True, preexec_fn=heed_interrupts
    )
    while not receipts(out, "07") and script.poll() is None:
        time.sleep(0.1)
    children = psutil.Process(script.pid).children(recursive=True)
    os.killpg(script.pid, signal.SIGTERM)  # as `timeout` does: the runner hears of it from the script as well
    assert script.wait(500) == 130
    assert not any(child.is_running() for child in children)
    assert (out / "receipts.tar.gz").is_file()
    first = receipts(out)
    assert [path.parent.name for path in first] == ["07"]

    hold.unlink()
    code, said, _ = gpu(toy, repo, "--dry-run", "--out", "out", "7", "8")
    assert code == 0 and [line.split()[0] for line in said.splitlines()[1:]] == ["pack08"]
    code, said, errors = gpu(toy, repo, "--out", "out", "7", "8")
    assert code == 0, errors
    assert receipts(out, "07") == first and len(receipts(out, "08")) == 1
    assert gpu(toy, repo, "--out", "out", "all")[0] == 0 and len(receipts(out)) == 2

    shutil.copytree(out / "receipts", repo / "receipts")  # as `manifest refresh` imports them
    code, said, _ = gpu(toy, repo, "--dry-run")
    assert (code, len(said.splitlines())) == (0, 1)


def test_a_lane_that_fails_is_run_again_and_told(toy, repo):
    pack = repo / "packs" / "07_toy" / "fix.patch"
    pack.write_text(pack.read_text().replace("+    for value in values:", "+    for value in values[2:]:"))
    for count in (1, 2):
        code, _, _ = gpu(toy, repo, "--out", "out", "7")
        assert (code, len(receipts(toy.root / "out"))) == (1, count)


def test_an_offline_host_takes_all_from_the_bundle(toy, repo):
    store = Store(toy.root / "store", offline=True)
    key = "b" * 64
    tree = store.tree("trees", key, "toyup 1.0", lambda folder: pytest.fail("it is published"))
    engine = store.tree("trees", "engine-x", "engine", lambda folder: (folder / "toyengine.py").write_text("") and None)
    parts = toy.root / "parts"
    parts.mkdir()
    bundle.write({key: tree}, engine, parts / "b", 1000, install.here())
    there = {"BUNDLE": str(parts), "PATCHLANE_STORE": str(toy.root / "there"), "PATCHLANE_OFFLINE": "0"}
    code, said, errors = gpu(toy, repo, "--out", "out", "7", **there)
    assert code == 0, said + errors
    installed = (toy.root / "out" / "install.log").stat().st_mtime_ns
    assert gpu(toy, repo, "--out", "out", "--dry-run", "7", **there)[0] == 0
    assert (toy.root / "out" / "install.log").stat().st_mtime_ns == installed
    shutil.rmtree(toy.root / "there")
    assert gpu(toy, repo, "--out", "out", "--dry-run", "7", **there)[0] == 0
    assert (toy.root / "out" / "install.log").stat().st_mtime_ns > installed


@pytest.mark.parametrize("script", ["gpu", "train"])
def test_usage(toy, script):
    def ended(*args):
        return subprocess.run([ROOT / "ci" / script, *args], env=environment(toy), capture_output=True).returncode

    assert (ended("--help"), ended("--no-such"), ended("--out")) == (0, 2, 2)


@pytest.fixture
def train(toy):
    """ci/train with an interpreter that lists two recipes and writes down what else it is asked."""
    fake = toy.root / "python"
    fake.write_text(
        f"""#!/bin/sh
case "$*" in
  *--list) printf 'cpu_tiny  nam56r_tiny  1  192  run\\n2xh200_bf16  nam56r  2  50  run\\n' ;;
  *) echo "$CUDA_VISIBLE_DEVICES: $*" >>{toy.root}/asked ;;
esac
"""
    )
    fake.chmod(0o755)

    def call(*args, gpus="0,1"):
        env = environment(toy, PYTHON=str(fake), CUDA_VISIBLE_DEVICES=gpus)
        command = [ROOT / "ci" / "train", "--out", toy.root / "run", *args]
        (toy.root / "asked").write_text("")
        done = subprocess.run(command, cwd=toy.root, env=env, capture_output=True, text=True)
        return done, (toy.root / "asked").read_text().replace(str(toy.root), "").splitlines()

    return call


def test_training_takes_its_gpus_from_the_recipe(train):
    done, asked = train("2xh200_bf16", "--steps", "3")
    assert done.returncode == 0, done.stderr
    ranks = "-m torch.distributed.run --standalone --nproc-per-node 2"
    assert asked[0] == f"0,1: {ranks} -m model.train 2xh200_bf16 --out /run --steps 3"
    assert [line.split()[2] for line in asked[1:]] == ["model.report", "model.report", "model.coverage"]
    assert "model.receipt keep" in done.stdout


def test_training_on_a_cpu_is_kept_when_asked(train):
    done, asked = train("--keep", "cpu_tiny_20261122", "cpu_tiny")
    assert (done.returncode, asked[0]) == (0, ": -m model.train cpu_tiny --out /run")
    assert asked[-1] == ": -m model.receipt keep /run cpu_tiny_20261122"


@pytest.mark.parametrize(("args", "gpus", "code"), [(["nope"], "0", 2), ([], "0", 2), (["2xh200_bf16"], "0", 77)])
def test_training_refuses_before_it_begins(train, args, gpus, code):
    done, asked = train(*args, gpus=gpus)
    assert (done.returncode, asked, bool(done.stderr)) == (code, [], True)


def test_the_workflow_calls_the_script_and_keys_its_caches_by_content():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step][-1] == "ci/cpu"
    used = re.findall(r"uses: (.*)", text)
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each) for each in used), used
    keys = " ".join(step["with"]["key"] for step in steps if "cache" in step.get("uses", ""))
    assert all(
        f"'{name}'" in keys
        for name in ("pyproject.toml", "packs/releases.yaml", "packs/needs.yaml", "packs/*/pack.yaml")
    )
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith('ci/cpu"')


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.y*ml")), ids=lambda path: path.name)
def test_a_form_names_every_field_once_and_says_what_it_asks(path):
    form = yaml.safe_load(path.read_text())
    if path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        names = [field["id"] for field in form["body"]]
        assert form["name"] and form["description"] and len(set(names)) == len(names)
        assert all(field["attributes"]["label"] for field in form["body"])


def test_hooks_run_what_make_lint_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]]
    tools = re.findall(
        r"\$\(BIN\)/(ruff \w+|mypy)", re.search(r"(?m)^lint:.*\n(.*)$", (ROOT / "Makefile").read_text())[1]
    )
    assert [" ".join(entry.split()[:2]) for entry in entries][:3] == tools


def test_the_two_halves_of_the_suite_are_all_of_it_and_disjoint():
    commands = re.findall(r"\$\(PYTEST\) (.*?)(?:; fi)?\n", (ROOT / "Makefile").read_text())
    assert commands == ["-m 'not rest'", "-m rest", "-m 'rest and not proved'"]
    assert "make test-ci" in (ROOT / "ci" / "cpu").read_text()


@pytest.mark.parametrize(("end", "begins"), [("1", False), ("99999999999", True), (None, True)])
def test_the_rest_is_not_begun_where_its_time_is_over(tmp_path, end, begins):
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text().replace("test-ci: test\n", "test-ci:\n"))
    environment = {name: value for name, value in os.environ.items() if name != "PATCHLANE_TESTS_END"}
    environment |= {"PATCHLANE_TESTS_END": end} if end else {}
    command = ["make", "-s", "test-ci", "PYTEST=echo begun"]
    said = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True, timeout=60)
    assert ("begun" in said, "skipped" in said) == (begins, not begins)


def test_a_receipt_covers_a_pack_until_a_file_of_it_changes(toy):
    pack, folder = toy.pack(), toy.root / "receipts"
    assert not tiers.covered(pack, folder)
    receipt = write(toy.run(pack), folder, "toy", [], {})
    assert tiers.covered(pack, folder)
    for file in (pack.patch, pack.reproducer):
        before = file.read_text()
        file.write_text(before + "\n# changed\n")
        assert not tiers.covered(pack, folder)
        file.write_text(before)
    other = pack.pins["live"].model_copy(update={"release": "2.0"})
    assert not tiers.covered(pack.model_copy(update={"pins": {"live": other}}), folder)
    assert tiers.covered(pack, folder)
    receipt.write_bytes(receipt.read_bytes().replace(b"toyup", b"toyop"))
    assert not tiers.covered(pack, folder)


def test_a_pack_whose_fix_its_receipt_refutes_is_not_covered(toy):
    pack, folder = toy.pack(toy.patch(edited(TOTAL))), toy.root / "receipts"
    write(toy.run(pack), folder, "toy", [], {})
    assert not tiers.covered(pack, folder)


def test_a_score_holds_until_patch_reproducer_or_mutants_change(toy, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    pack, folder = ready.write_pack(toy), toy.root / "scores"
    assert not tiers.scored(pack, folder)
    monkeypatch.setattr(mutate, "load_named", lambda names: [pack])
    CliRunner().invoke(mutate.app, ["pack07", "--only", "hand", "--receipts", str(folder)])
    assert tiers.scored(pack, folder)
    more = pack.folder / "mutants" / "more.patch"
    more.write_bytes((pack.folder / "mutants" / "mean.patch").read_bytes())
    assert not tiers.scored(pack, folder)
    more.unlink()
    assert tiers.scored(pack, folder)
    mutant = pack.folder / "mutants" / "mean.patch"
    mutant.write_text(mutant.read_text().replace("Why: ", "Why: still "))
    assert not tiers.scored(pack, folder)
    mutant.write_text(mutant.read_text().replace("Why: still ", "Why: "))
    pack.reproducer.write_text(pack.reproducer.read_text() + "\n# changed\n")
    assert not tiers.scored(pack, folder)


@pytest.mark.parametrize(("end", "skipped"), [(None, False), ("1", True), ("99999999999", False)])
def test_when_its_time_is_over_the_rest_is_skipped_with_the_reason(end, skipped, monkeypatch):
    monkeypatch.delenv("PATCHLANE_TESTS_END", raising=False)
    if end:
        monkeypatch.setenv("PATCHLANE_TESTS_END", end)
    chosen = ["--setup-plan", "-p", "no:cacheprovider", "-m", "long", "tests/upstream/test_store.py"]
    done = subprocess.run([sys.executable, "-m", "pytest", *chosen], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and ("make test-all" in done.stdout) == skipped, done.stdout


def test_what_make_test_leaves_out(monkeypatch):
    packs = {pack.number: pack for pack in load_packs()}
    monkeypatch.setattr(tiers, "covered", lambda pack: pack.number != 5)
    assert not any(tiers.rests({"upstream", "pack"}, packs[number], "test_packs.py") for number in tiers.SAMPLE)
    assert not tiers.rests({"pack"}, packs[5], "test_packs.py")
    assert tiers.rests({"pack"}, packs[4], "test_packs.py") and tiers.rests({"pack"}, None, "test_packs.py")
    assert tiers.rests({"pack", "long"}, packs[13], "test_printed_commands.py")
    assert tiers.rests({"long"}, None, "test_store.py") and tiers.rests({"site"}, None, "test_site.py")
    assert tiers.rests({"train"}, None, "test_train_cli.py")
    assert not tiers.rests({"upstream"}, None, "test_lock.py")
    for file in tiers.TRAINED:
        assert not tiers.rests({"train"}, None, file) and list(ROOT.glob(f"tests/**/{file}"))
