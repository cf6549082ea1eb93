"""A verb that cannot start says why in one line: no traceback, and no exit code that is a verdict."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from reproducers.__main__ import GROUPS, verbs
from reproducers.__main__ import VERBS as COMMANDS
from reproducers.base.start import unimportable
from reproducers.record.schema import ROOT

BARE = [sys.executable, "-S"]  # no site-packages: the standard library only
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PYTHONPATH": str(ROOT)}
VERBS = [f"{name}.{verb}" for name in ("reproducers", "model") for verb in verbs(ROOT / name)]
ALONE = ("reproducers.doctor", "reproducers.bundle")  # say it in their own words, or start without


def ended(command, *args):
    done = subprocess.run([*command, *args], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("verb", VERBS)
def test_without_dependencies(verb):
    done = ended(BARE, "-m", verb)
    assert (done.returncode, "fix: make setup" in done.stderr) == (77, True)
    assert len(done.stderr.splitlines()) == 2


def test_bisect_without_dependencies_is_no_answer():
    assert ended(BARE, "-m", "reproducers.run", "pack09", "--bisect").returncode == 125


def test_bundle_install_starts_without_dependencies():
    done = ended(BARE, "-m", "reproducers.bundle", "install")
    assert (done.returncode, "usage:" in done.stderr) == (2, True)


OLD = "import sys; sys.version_info = (3, 10, 13); sys.argv = ['-m', *sys.argv[1:]]; import reproducers"


@pytest.mark.parametrize(("args", "code"), [([], 77), (["pack09", "--bisect"], 125)])
def test_an_old_interpreter(args, code):
    done = ended([sys.executable, "-c", OLD], *args)
    assert (done.returncode, "3.11.4" in done.stderr) == (code, True)


@pytest.mark.parametrize("name", ["base/start", "__init__"])
def test_what_refuses_an_old_interpreter_parses_on_one(name):
    """Python 3.6 has no annotations to come, no walrus, no union of types written with a bar."""
    text = (ROOT / "reproducers" / f"{name}.py").read_text()
    assert not re.search(r"from __future__|:=|-> .*\|", text)


@pytest.mark.parametrize("option", [[], ["--bisect"]])
def test_an_interrupt_before_the_verb_begins_is_one_and_no_revision_to_skip(option):
    early = "from reproducers.base import start; start.check(); raise KeyboardInterrupt"
    assert ended([sys.executable, "-c", early], *option).returncode == 130


def test_only_others_modules_are_wanting():
    assert unimportable(ModuleNotFoundError("x", name="typer.core"))
    assert not unimportable(ModuleNotFoundError("x", name="reproducers.absent"))
    assert not unimportable(ValueError("x"))


SCRIPT = ["-c", "import sys; sys.argv[0] = 'bin/patchlane'; from patchlane.__main__ import main; main()"]


def patchlane(*args, python=(sys.executable,), cwd=ROOT):
    """What the command ends with: the script that pip writes does no more than SCRIPT."""
    done = subprocess.run([*python, *SCRIPT, *args], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_command_is_the_one_that_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"patchlane": "patchlane.__main__:main"}


def test_every_verb_is_in_one_group_under_one_name():
    grouped = [module for modules in GROUPS.values() for module in modules]
    assert sorted(grouped) == sorted(VERBS)
    assert sorted(COMMANDS.values()) == sorted(VERBS)  # two verbs of one name would leave one out
    assert len(GROUPS) == 4


@pytest.mark.parametrize(
    "args", [("-c", SCRIPT[1]), ("-c", SCRIPT[1], "--help"), ("-m", "reproducers"), ("-m", "model")]
)
def test_all_verbs_are_listed_in_one_line_each(args):
    done = ended([sys.executable], *args)
    lines = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    assert (done.returncode, [line.split()[0] for line in lines]) == (0, list(COMMANDS))
    assert all(len(line.split()) > 4 and len(line) <= 120 and "``" not in line for line in lines), lines


@pytest.mark.parametrize("args", [("-c", SCRIPT[1]), ("-m", "reproducers")])
def test_a_verbs_help_names_the_command_that_runs_it(args):
    done = ended([sys.executable], *args, "explain", "--help")
    assert "Usage: patchlane explain " in done.stdout


def test_the_page_of_verbs_is_what_the_command_prints():
    done = ended([sys.executable], "-m", "reproducers", "--markdown")
    assert done.stdout == (ROOT / "docs" / "verbs.md").read_text(), "python -m reproducers --markdown > docs/verbs.md"
    assert re.findall(r"^### (\S+)$", done.stdout, re.M) == list(COMMANDS)


def test_the_command_is_the_verb(tmp_path):
    done = patchlane("run", "--list", "--json", cwd=tmp_path)
    module = ended([sys.executable], "-m", "reproducers.run", "--list", "--json")
    assert (done.returncode, done.stdout) == (0, module.stdout)
    assert "Usage: patchlane run " in patchlane("run", "--help").stdout
    assert patchlane("run", "--lane", "gpu").returncode == 2
    assert patchlane("run", "pack99", "--bisect").returncode == 125


def test_the_command_imports_no_more_than_the_verb():
    sides = {}
    for command in (SCRIPT, ["-m", "reproducers.run"]):
        args = ["run", "--list"] if command is SCRIPT else ["--list"]
        done = subprocess.run([sys.executable, "-X", "importtime", *command, *args], cwd=ROOT, capture_output=True)
        sides[command[0]] = {line.rsplit(b"|", 1)[-1].strip().split(b".")[0] for line in done.stderr.splitlines()}
    assert sides["-c"] - sides["-m"] <= {b"difflib", b"ast", b"_ast", b"re", b"_opcode", b"opcode", b"runpy"}


@pytest.mark.parametrize("args", [("run", "pack09"), ("train", "cpu_tiny"), ("train-lock", "check")])
def test_the_command_without_dependencies(args):
    done = patchlane(*args, python=BARE)
    assert (done.returncode, done.stderr.count("fix: make setup")) == (77, 1)
    assert patchlane(*args, "--bisect", python=BARE).returncode == 125


@pytest.mark.parametrize(
    ("verb", "near"), [("rnu", "patchlane run"), ("receipt", "patchlane receipts"), ("zzz", "patchlane --help")]
)
def test_an_unknown_verb(verb, near):
    done = patchlane(verb)
    assert (done.returncode, done.stdout, near in done.stderr) == (2, "", True)


def test_the_command_without_packs_says_what_to_install(tmp_path):
    for name in ("patchlane", "reproducers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    env = ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *SCRIPT, "run"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, "pip install -e" in done.stderr) == (77, True)
