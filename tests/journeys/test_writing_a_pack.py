"""docs/writing-a-pack.md, followed to the letter: each file is written and each command run, in the page's order."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
import yaml
from toy import package_index, wheel, write_tree

from reproducers.record.schema import ROOT

CORE = "def total(values):\n    result = 0\n    for value in values[1:]:\n        result += value\n    return result\n"
SOURCE = {"toyup/__init__.py": "", "toyup/core.py": CORE}
STEP = re.compile(r"^`(packs/[\w./]+)`\n```\w+\n(.*?)^```$|^    (python [^\n]*?)(?: +# ([^\n]*))?$", re.M | re.S)


RECORD, RELEASES = "packs/99_toy_total/pack.yaml", "packs/releases.yaml"


class Step(NamedTuple):
    """A file to write, or a command to run with the page's comment on how it ends."""

    file: str
    text: str
    command: str
    said: str


STEPS = [Step(*match) for match in STEP.findall((ROOT / "docs" / "writing-a-pack.md").read_text())]


@pytest.fixture
def desk(tmp_path):
    """A checkout without packs, the upstream's beside it, and a package index that has the upstream's release."""
    pytest.importorskip("cmarkgfm")
    for name in ("patchlane", "reproducers", "templates"):
        shutil.copytree(ROOT / name, tmp_path / "repo" / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    (tmp_path / "repo" / "packs").mkdir()
    write_tree(tmp_path / "toyup", SOURCE)
    wheel(tmp_path / "index", SOURCE)
    with package_index(tmp_path / "index") as url:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PATCHLANE_")}
        environment |= {"PYTHONPATH": str(tmp_path / "repo"), "PATCHLANE_STORE": str(tmp_path / "store")}
        environment |= {"PIP_INDEX_URL": url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "COLUMNS": "200"}

        def run(command):
            words = [sys.executable if word == "python" else word for word in shlex.split(command)]
            done = subprocess.run(words, cwd=tmp_path / "repo", env=environment, capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr

        yield tmp_path / "repo", run


def test_the_page_leads_from_nothing_to_what_a_maintainer_gets(desk):
    repo, run = desk
    verbs = [step.command.split()[2].rpartition(".")[2] for step in STEPS if " -m " in step.command]
    assert set(verbs) >= {"new", "run", "ablate", "manifest", "lint", "export", "render", "preflight"}
    begun = {}
    for step in STEPS:
        if step.file:
            assert (repo / step.file).is_file(), f"{step.file} is not among what new has written"
            write_tree(repo, {step.file: step.text})
            continue
        code, out = run(step.command)
        due = re.search(r"\bexit (\d+)", step.said)
        assert code == int(due[1] if due else 0), f"{step.command}\n{out}"
        assert all(word in out for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", step.said)), f"{step.command}\n{out}"
        begun = begun or {name: yaml.safe_load((repo / name).read_text()) for name in (RECORD, RELEASES)}
    record, releases = (yaml.safe_load((repo / name).read_text()) for name in (RECORD, RELEASES))
    assert begun[RECORD]["pins"] == record["pins"], "the page has new's pins"
    release = releases["toyup"]["1.0"]
    assert begun[RELEASES]["toyup"]["1.0"]["artifacts"] == release["artifacts"], "the page has new's digests"
    assert yaml.safe_load((repo / "manifest.yaml").read_text())["packs"]["pack99"]["state"] == "validated"
    text = (repo / "build/filing/pack99/issue.md").read_text()
    assert "`total([1, 2, 3])` is off by 1." in text
    checked = json.loads(run("python -m reproducers.preflight pack99 --json")[1])
    assert {point["name"] for point in checked["blockers"]} <= {"search age"}  # as years go by
    assert [point["name"] for point in checked["points"] if point["result"] != "pass"] == ["approval"]


def test_every_file_that_new_writes_is_on_the_page():
    from reproducers.desk.start import skeleton

    files = {step.file.partition("packs/99_toy_total/")[2] for step in STEPS if step.file and step.file != RELEASES}
    assert files == {path.relative_to(skeleton.TEMPLATES).as_posix()[:-3] for path in skeleton.TEMPLATES.rglob("*.in")}
