"""The documentation's example pack is built from the page and run; README's commands exist."""

import re
import subprocess
import sys

from reproducers import receipts
from reproducers.experiment import Request, execute
from reproducers.receipts import write
from reproducers.render import render
from reproducers.schema import ROOT, load_pack
from reproducers.store import Store
from reproducers.verdicts import Verdict

BUGGY = "def total(values):\n    result = 0\n    for value in values[1:]:\n        result += value\n    return result\n"


def example(folder):
    """Write the page's labelled code blocks under ``folder``; returns the pack's folder."""
    page = (ROOT / "docs" / "writing-a-pack.md").read_text()
    for name, text in re.findall(r"^`(packs/[\w./]+)`\n```\w+\n(.*?)^```", page, re.M | re.S):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "packs" / "07_toy_total"


def run(tmp_path, source):
    core = tmp_path / "upstream" / "toyup" / "core.py"
    core.parent.mkdir(parents=True)
    core.write_text(source)
    (core.parent / "__init__.py").write_text("")
    request = Request(upstream=tmp_path / "upstream")
    return execute(load_pack(example(tmp_path)), request, Store(tmp_path / "store"), lambda arm, line: None)


def test_the_example_pack_reproduces_and_fixes(tmp_path, monkeypatch):
    monkeypatch.setattr(receipts, "COMMITTED", tmp_path / "committed")
    done = run(tmp_path, BUGGY)
    assert done.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, done.log
    assert done.sentinels == ["BUG_REPRODUCED", "FIX_VALIDATED"]
    write(done, tmp_path / "receipts", "toy", [], {})
    assert "`total([1, 2, 3])` is off by 1." in render(done.pack, tmp_path / "receipts")


def test_the_example_pack_says_fixed_upstream_on_a_healthy_tree(tmp_path):
    assert run(tmp_path, BUGGY.replace("[1:]", "")).ruling.verdict is Verdict.FIXED_UPSTREAM


def test_every_verb_in_readme_answers_help():
    verbs = set(re.findall(r"python -m reproducers\.([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"run", "export", "doctor", "explain", "bundle", "receipts", "manifest"} <= verbs
    for verb in sorted(verbs):
        done = subprocess.run([sys.executable, "-m", f"reproducers.{verb}", "--help"], capture_output=True, cwd=ROOT)
        assert done.returncode == 0, (verb, done.stderr)


def test_every_environment_variable_has_a_row():
    table = (ROOT / "README.md").read_text()
    used = {
        name for path in (ROOT / "reproducers").glob("*.py") for name in re.findall(r"PATCHLANE_\w+", path.read_text())
    }
    assert used and all(f"`{name}`" in table for name in used)
