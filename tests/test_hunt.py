"""A hunt on the toy's release ends in a pack folder that shows the bug; on Liger-Kernel's it finds what packs know."""

import json
import subprocess
import sys
from collections import Counter

import hunted
import pytest
from toy import PUBLISHED, SOURCE
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from reproducers import hunt
from reproducers.record.schema import ROOT
from reproducers.studies.hunt import corpus, filing, session, targets
from reproducers.upstream.store import Store

pytestmark = pytest.mark.rest  # starts interpreters with torch


@pytest.fixture
def hunting(toy, monkeypatch):
    """The toy's release with the two functions of ``hunted.OPS``, and the toy among the upstreams."""
    toy.publishes(PUBLISHED, "{}")
    (toy.packs / "numbers.yaml").write_text("{}\n")
    toy.publish({**SOURCE, "toyup/ops.py": hunted.OPS})
    for module in (session, filing):
        monkeypatch.setattr(module, "ROOT", toy.root)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setitem(targets.UPSTREAMS, "toyup", targets.Upstream("tests.kit.hunted", "toy/toyup", "toyup"))
    monkeypatch.chdir(toy.root)
    return toy


def test_an_alarm_becomes_a_pack_folder_that_runs(hunting):
    done = CliRunner().invoke(hunt.app, ["toyup", "--minutes", "0.2", "--only", "HalfGradient", "--corpus", "kept"])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
    (folder,) = (hunting.root / "build/hunt").glob("[0-9]*")
    assert (
        folder.name.endswith("_toyup_halfgradient_reference")
        and "<write the claim" in (folder / "pack.yaml").read_text()
    )
    (alarm,) = corpus.kept(hunting.root / "kept", "toyup")
    assert (alarm.target, alarm.relation, alarm.what) == ("HalfGradient", "reference", "gradient of x")

    tree = next(line for line in done.output.splitlines() if "--tree" in line).split("--tree ")[1].strip()
    command = [sys.executable, str(folder / "reproducer.py"), "--tree", tree]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0 and "BUG_REPRODUCED: gradient of x" in ran.stdout, ran.stdout + ran.stderr

    (path,) = (hunting.root / "kept/toyup").iterdir()
    assert json.loads(path.read_text())["case"]["sizes"] == {"B": 1, "T": 1, "H": 1}
    path.write_text("{}")
    wrong = CliRunner().invoke(hunt.app, ["toyup", "--minutes", "0.05", "--corpus", "kept"])
    assert wrong.exception.remedy == f"rm {path.relative_to(hunting.root)}"


def test_a_silent_function_is_no_alarm(hunting):
    done = CliRunner().invoke(hunt.app, ["toyup", "--minutes", "0.1", "--only", "Square", "--corpus", "kept"])
    assert done.exit_code == 0 and "0 alarms" in done.output, done.output


def test_a_function_that_no_target_has_is_named_with_those_that_there_are(hunting):
    done = CliRunner().invoke(hunt.app, ["toyup", "--minutes", "0.05", "--only", "Squares", "--corpus", "kept"])
    assert isinstance(done.exception, PatchlaneError) and done.exception.exit_code == 2
    assert "Square" in done.exception.remedy.replace("one of ", "").split(", ")


def test_cases_that_every_function_refuses_compare_nothing():
    found = session.Found("1.0", ROOT, cases=Counter(a=3, b=2), refused=Counter(a=3, b=1))
    assert found.compared == 1


@pytest.mark.upstream
@pytest.mark.long
@pytest.mark.parametrize(
    ("release", "only", "relation"),
    [
        pytest.param("0.8.5", "rms_norm", "residual", id="22"),
        pytest.param("0.8.5", "swiglu", "other_consumer", id="23"),
        pytest.param("0.8.5", "fused_linear_cross_entropy", "frozen", id="27"),
        pytest.param("0.8.5", "cross_entropy", "second_backward", id="28"),
        pytest.param("0.8.5", "rope", "unchanged", id="29"),
    ],
)
def test_it_finds_what_the_packs_know(release, only, relation, tmp_path):
    found = hunted_for(release, only, tmp_path)
    assert relation in {alarm.relation for alarm in found.alarms}, session.told(found)


@pytest.mark.upstream
@pytest.mark.long
@pytest.mark.parametrize(("release", "there"), [("0.7.0", True), ("0.8.5", False)])
def test_it_finds_09_where_it_is(release, there, tmp_path):
    """Gradients per token by the weight of the first: of both releases, only one has it."""
    found = hunted_for(release, "fused_linear_cross_entropy", tmp_path)
    rows = [
        a for a in found.alarms if a.relation in ("reference", "linear") and a.case["options"]["reduction"] == "none"
    ]
    assert bool(rows) is there, session.told(found)


def hunted_for(release, only, folder):
    """A hunt of a minute for one function of Liger-Kernel, with an empty corpus."""
    request = session.Request("liger-kernel", 1.0, release, only=only)
    return session.Session(request, Store(), folder, print).run()
