"""The command that evaluates a checkpoint."""

import sys

from typer.testing import CliRunner

from model import evaluate
from patchlane.base.errors import CannotTestHere


def test_without_the_harness_it_says_what_to_install_before_it_reads_anything(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    ended = CliRunner().invoke(evaluate.app, [str(tmp_path / "none"), "--tasks", "any"])
    assert isinstance(ended.exception, CannotTestHere) and "pip install lm-eval" in ended.exception.remedy


def test_tasks_have_to_be_named(tmp_path):
    assert CliRunner().invoke(evaluate.app, [str(tmp_path)]).exit_code == 2
