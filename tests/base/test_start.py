"""A verb that cannot start says why in one line: no traceback, and no exit code that is a verdict."""

import os
import re
import subprocess
import sys

import pytest

from reproducers.__main__ import verbs
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
    assert (done.returncode, "mend: make setup" in done.stderr) == (77, True)
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


@pytest.mark.parametrize("name", ["start", "__init__"])
def test_what_refuses_an_old_interpreter_parses_on_one(name):
    """Python 3.6 has no annotations to come, no walrus, no union of types written with a bar."""
    text = (ROOT / "reproducers" / f"{name}.py").read_text()
    assert not re.search(r"from __future__|:=|-> .*\|", text)


def test_only_others_modules_are_wanting():
    assert unimportable(ModuleNotFoundError("x", name="typer.core"))
    assert not unimportable(ModuleNotFoundError("x", name="reproducers.absent"))
    assert not unimportable(ValueError("x"))


@pytest.mark.parametrize("package", ["reproducers", "model"])
def test_the_package_lists_its_verbs(package):
    done = ended([sys.executable], "-m", package)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line.split()[2] for line in lines] == [verb for verb in VERBS if verb.startswith(package)]
    assert all(len(line.split()) > 4 for line in lines)
