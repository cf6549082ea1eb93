"""The wheel: what it holds, and that it audits and patches with nothing of the clone beside it."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from toy_environment import installed

from patchlane.known.index import load, path_in
from patchlane.verb.request import Request, answered
from reproducers.record.schema import ROOT

SAMPLES = ROOT / "tests" / "kit" / "environments"
SHOWN = ("uv.lock", "requirements.txt", "Dockerfile", "conda_list.txt", "install.sh", "pyproject.toml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of this clone; a build leaves folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("patchlane", "reproducers", "model", "packs"):
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, folder / "clone" / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(folder), str(folder / "clone")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def patchlane(wheel, tmp_path_factory):
    """(exit code, stdout, stderr) of the command in a new environment that has the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", symlinks=True)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "libraries.pth").write_text(f"{Path(yaml.__file__).parents[1]}\n")

    def run(*args, code=None, env=None):
        command = [folder / "env" / "bin" / "python", *(["-c", code] if code else ["-m", "patchlane"]), *args]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | (env or {})
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def test_it_holds_the_audit_and_the_patches_and_is_small(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"patchlane"}
    inner = {name.removeprefix("patchlane/packs/") for name in names if name.startswith("patchlane/packs/")}
    wanted = {f"{pack.folder}/{patch}" for pack in load(path_in()).packs.values() for patch in pack.patches}
    assert wanted <= inner and {Path(name).suffix for name in inner} == {".patch", ".json"}
    assert wheel.stat().st_size < 5 * 2**20


@pytest.mark.parametrize("sample", SHOWN)
def test_it_answers_as_the_clone_does_with_remedies_that_work_there(patchlane, sample, capsys):
    ended = answered(Request(requirements=SAMPLES / sample, as_json=True))
    ours = json.loads(capsys.readouterr().out)
    code, out, _ = patchlane("audit", "--json", "--requirements", str(SAMPLES / sample))
    theirs = json.loads(out)
    said = [[(a["pack"], a["state"], a["reason"]) for a in one["answers"]] for one in (ours, theirs)]
    assert code == ended and said[0] == said[1] and said[0] and ours["advice"] == theirs["advice"]
    remedies = [answer["remedy"] for answer in theirs["answers"]]
    assert [text for text in remedies if "python -m" in text and "in a clone of patchlane: " not in text] == []


@pytest.mark.parametrize(
    ("args", "absent"),
    [
        (["--help"], {"packaging", "yaml", "urllib.request"}),
        (
            ["audit", "--release", "megatron-core==0.18.2"],
            {"yaml", "tree_sitter", "pip_requirements_parser", "urllib.request"},
        ),
        (["audit", "--requirements", str(SAMPLES / "uv.lock")], {"yaml", "tree_sitter", "dockerfile_parse"}),
    ],
)
def test_it_imports_what_it_needs_and_no_more(patchlane, args, absent):
    absent = {*absent, "pydantic", "torch", "typer", "rich", "reproducers", "model"}
    code = "import sys\nfrom patchlane.__main__ import main\ntry: main()\nfinally: print('MODULES', *sys.modules)"
    _, out, _ = patchlane(*args, code=code)
    loaded = {*out.split("MODULES ")[1].split()}
    assert "patchlane.base.ends" in loaded and loaded & absent == set()


def test_all_other_verbs_need_a_clone(patchlane):
    code, _, err = patchlane("run", "pack09")
    assert code == 2 and "clone" in err
    code, out, _ = patchlane()
    assert code == 0 and "patchlane audit" in out


@pytest.mark.parametrize("args", [["--no-such"], ["pack99"], ["--data", "absent.json"], ["--python", "absent"]])
def test_bad_input_exits_2_with_its_remedy(patchlane, args):
    code, _, err = patchlane("audit", *args)
    assert code == 2 and "fix: " in err and "git " not in err


def test_a_damaged_index_names_what_brings_it_back(patchlane, tmp_path):
    (tmp_path / "x.json").write_text("{")
    code, _, err = patchlane("audit", "--data", str(tmp_path / "x.json"))
    assert code == 2 and "x.json" in err and "--data" in err


def test_without_a_word_it_is_what_is_activated(patchlane, tmp_path):
    venv.create(tmp_path / "active", symlinks=True)
    _, out, _ = patchlane("audit", "pack09", env={"VIRTUAL_ENV": str(tmp_path / "active")})
    assert out.startswith(f"{tmp_path / 'active' / 'bin' / 'python'}\n")


def test_an_installation_is_judged(patchlane, tmp_path):
    site = installed(tmp_path / "site", {}, "0.18.2", "megatron-core")
    code, out, _ = patchlane("audit", "--python", str(site), "--json")
    assert code == 77 and {answer["state"] for answer in json.loads(out)["answers"]} <= {"absent", "unknown"}
