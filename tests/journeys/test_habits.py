"""What a team uses each day: the pre-commit hook, the GitHub Action and a Dockerfile, as their files have them."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from patchlane.known import data
from reproducers.record.schema import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
AUDIT, VERDICT = STEPS["Audit"], STEPS["Fail where a bug is unpatched"]
BUGGY, FINE, UNREAD = "liger-kernel==0.7.0\n", "liger-kernel==0.8.2\n", "packaging==26.0\n-e ./somewhere\n"


def shim(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def runner(tmp_path):
    """Runs a step as a runner does; the command that its first step installs is this checkout's."""
    shim(tmp_path / "temp/patchlane/bin/patchlane", f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m reproducers "$@"')
    told = dict[str, str]()

    def run(step, **inputs):
        values = {name: spec["default"] for name, spec in ACTION["inputs"].items()} | inputs
        context = {f"inputs.{name}": value for name, value in values.items()}
        context |= {f"steps.audit.outputs.{name}": value for name, value in told.items()}
        env = {k: re.sub(r"\$\{\{ (\S+) \}\}", lambda m: context[m[1]], v) for k, v in step.get("env", {}).items()}
        output = tmp_path / "output"
        output.write_text("")
        env |= {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path / "temp"), "GITHUB_OUTPUT": str(output)}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True)
        told.update(line.split("=", 1) for line in output.read_text().splitlines())
        return done

    run.told, run.folder = told, tmp_path
    return run


@pytest.mark.parametrize(
    ("text", "code", "unknown"), [(BUGGY, 1, "fail"), (FINE, 0, "fail"), (UNREAD, 77, "fail"), (UNREAD, 77, "pass")]
)
def test_the_action_fails_after_its_answers_are_written(runner, text, code, unknown):
    (runner.folder / "a b.txt").write_text(text)
    done = runner(AUDIT, requirements="a b.txt")
    assert (done.returncode, runner.told["exit-code"]) == (0, str(code)), done.stderr
    (answers,) = json.loads((runner.folder / "temp/patchlane.sarif").read_text())["runs"]
    assert runner.told["sarif"] == str(runner.folder / "temp/patchlane.sarif")
    assert any(row["ruleId"] == "pack09" for row in answers["results"]) == (code == 1)
    assert runner(VERDICT, unknown=unknown).returncode == (0 if unknown == "pass" else code)


def test_the_action_leaves_packs_out_and_names_a_file_that_is_not_there(runner):
    (runner.folder / "requirements.txt").write_text(BUGGY)
    known = " ".join(data.known().packs)
    runner(AUDIT, requirements="requirements.txt", ignore=known.replace("pack09", ""))
    assert runner.told["exit-code"] == "1"
    runner(AUDIT, requirements="requirements.txt", ignore=known)
    assert runner.told["exit-code"] == "77"
    assert runner(AUDIT, requirements="gone.txt").returncode not in (0, 1, 77)


def test_the_action_audits_an_environment_by_its_command(runner):
    runner(AUDIT, python=sys.executable)
    assert runner.told["exit-code"] in ("0", "1", "77")


def test_no_input_is_pasted_into_a_script():
    assert [step["name"] for step in STEPS.values() if "${{" in step.get("run", "")] == []
    assert all("shell" in step for step in STEPS.values() if "run" in step)


def test_the_hook_runs_a_command_of_the_project():
    command, verb = HOOK["entry"].split()
    assert command in PROJECT["scripts"] and verb == "audit" and HOOK["language"] == "python"


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt",
        "docker/requirements-dev.txt",
        "uv.lock",
        "a/pyproject.toml",
        "Dockerfile",
        "x.Dockerfile",
        "build.sh",
        "pylock.gpu.toml",
    ],
)
def test_the_hook_runs_for_what_the_audit_reads(name):
    assert re.search(HOOK["files"], name)


@pytest.mark.parametrize("name", ["train.py", "README.md", "lock", "uv.lock.md", "Dockerfiles/x.txt"])
def test_the_hook_leaves_other_files_alone(name):
    assert not re.search(HOOK["files"], name)


@pytest.mark.parametrize("code", [0, 1, 77])
def test_the_dockerfile_s_stage_ends_as_the_audit_does(tmp_path, code):
    (line,) = re.findall(r"^RUN (python3 -m venv .*)$", (ROOT / "docs/audit.md").read_text(), re.M)
    line = line.replace("/tmp/audit", str(tmp_path / "audit"))
    shim(tmp_path / "patchlane", f'echo "$@" >"{tmp_path}/asked"; exit {code}')
    shim(tmp_path / "pip", f'test "$*" = "install -q wheel of it" && cp "{tmp_path}/patchlane" "$(dirname "$0")"')
    shim(tmp_path / "bin/python3", f'mkdir -p "$3/bin" && cp "{tmp_path}/pip" "$3/bin"')
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PATCHLANE": "wheel of it"}
    assert subprocess.run(["sh", "-c", line], env=env).returncode == code
    assert (tmp_path / "asked").read_text() == f"audit --python {tmp_path}/bin/python3\n"
