"""The lint verb: what it prints, writes and exits with."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from reproducers import lint
from reproducers.desk.rules.engine import Fault, Report, Skipped, meanings
from reproducers.record.schema import ROOT

FAULT = Fault("gfm-fence", "pack01", "packs/01_x/body.md.j2", 3, "never closed", "close it")
SKIPPED = [Skipped("patch-clean", name, "no tree: run") for name in ("pack01", "pack02")]


def verb(*args, **report):
    """The verb's result on a report of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lint, "lint", lambda names, today: Report(names or ["pack01"], **report))
        return CliRunner().invoke(lint.app, [str(arg) for arg in args])


def test_faults_are_printed_with_their_place_and_mend_and_exit_1():
    done = verb(faults=[FAULT], skipped=SKIPPED)
    assert done.exit_code == 1
    fault, skipped, counts = done.output.splitlines()
    assert fault == "packs/01_x/body.md.j2:3: gfm-fence: never closed; fix: close it"
    assert skipped == "skipped: patch-clean: pack01, pack02: no tree: run"
    assert re.findall(r"\d+", counts) == ["1", "1", "0", "2"]


def test_clean_exits_0():
    done = verb("pack05")
    assert done.exit_code == 0 and re.findall(r"\d+", done.output) == ["1", "0", "0", "0"]


def test_json():
    done = verb("--json", faults=[FAULT])
    assert json.loads(done.output)["faults"][0]["rule"] == "gfm-fence"


def test_list_names_every_rule():
    done = CliRunner().invoke(lint.app, ["--list"])
    assert [line.split()[0] for line in done.output.splitlines()] == list(meanings())


def run(*args):
    command = [sys.executable, "-m", "reproducers.lint", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (["pack99"], "'pack99'"),
        (["--date", "soon"], "--date soon"),
    ],
)
def test_bad_input_exits_2_with_its_remedy(args, wrong):
    done = run(*args)
    assert done.returncode == 2 and wrong in done.stderr and "fix:" in done.stderr and "Traceback" not in done.stderr


def test_a_real_pack_and_no_network_client():
    pytest.importorskip("cmarkgfm")
    code = (
        "import sys, datetime; from reproducers.lint import lint; print(lint(['pack02'], datetime.date(2026, 11, 22)));"
        "clients = {'requests', 'urllib3', 'httpx', 'aiohttp', 'http.client', 'urllib.request'};"
        "sys.exit(bool(clients & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults=[]" in done.stdout
