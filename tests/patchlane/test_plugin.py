"""``pytest --upstream-guards`` in a run of its own: what fails, passes, is skipped, or is not there."""

import os
import re
import subprocess
import sys

import pytest
from toy import SOURCE, edited, write_tree
from toy_environment import FIXED, PATCHED, installed, known_of

from reproducers.record.schema import ROOT

PLUGIN = "patchlane.plugin"
STRANGE = edited(("values[1:]:", "values[2:]:"))


@pytest.fixture
def guards(toy, tmp_path):
    """(exit code, {word: number of tests}, output) of pytest in a folder with one test, the toy installed."""
    pack = toy.pack()
    root = toy.repository(pack)
    (root / "packs" / "fingerprints.json").write_text(known_of(pack).index.text)
    own = write_tree(tmp_path / "project", {"test_own.py": "def test_own():\n    pass\n"})
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}

    def run(*args, files=SOURCE, version="1.0"):
        site = installed(tmp_path / "site", files, version)
        code = f"import sys; sys.path[:0] = [{str(root)!r}, {str(site)!r}]; import pytest; sys.exit(pytest.main())"
        command = [
            sys.executable,
            "-c",
            code,
            "-p",
            "patchlane.plugin",
            "-p",
            "no:cacheprovider",
            "-rA",
        ]
        done = subprocess.run([*command, *args], cwd=own, env=environment, capture_output=True, text=True)
        assert "Traceback" not in done.stdout + done.stderr, done.stdout
        counts = re.findall(
            r"(\d+) (passed|failed|skipped|deselected)", done.stdout.splitlines()[-1] if done.stdout else ""
        )
        return done.returncode, {word: int(number) for number, word in counts}, done.stdout + done.stderr

    return run


@pytest.mark.parametrize(
    ("files", "ended", "counts", "said"),
    [
        (SOURCE, 1, {"passed": 1, "failed": 1}, "fix: pip install toyup==2.0"),
        (PATCHED, 0, {"passed": 2}, "PASSED upstream-guards::pack07"),
        (FIXED, 0, {"passed": 2}, "PASSED upstream-guards::pack07"),
        (STRANGE, 0, {"passed": 1, "skipped": 1}, "python -m reproducers.audit pack07 --run"),
    ],
)
def test_one_item_a_pack(guards, files, ended, counts, said):
    done = guards("--upstream-guards", files=files)
    assert done[:2] == (ended, counts) and said in done[2], done[2]


def test_without_the_option_there_is_none(guards):
    assert guards()[:2] == (0, {"passed": 1})


def test_nothing_installed_gives_no_item(guards):
    assert guards("--upstream-guards", files={"other/__init__.py": ""}, version=None)[:2] == (0, {"passed": 1})


def test_items_are_chosen_as_others_are(guards):
    left_out = guards("--upstream-guards", "--deselect", "upstream-guards::pack07")
    assert left_out[:2] == (0, {"passed": 1, "deselected": 1})
    assert guards("--upstream-guards", "-k", "pack07")[:2] == (1, {"failed": 1, "deselected": 1})


def test_a_damaged_file_is_a_usage_error(guards, toy):
    (toy.root / "repo" / "packs" / "fingerprints.json").write_text("{")
    ended, counts, said = guards("--upstream-guards")
    assert (ended, counts) == (4, {}) and "git checkout HEAD -- " in said


def test_it_is_light():
    heavy = {"pydantic", "yaml", "reproducers"}
    code = f"import sys, pytest; import patchlane.plugin; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
