"""docs/paths.md: what the verb prints, and every path once."""

import re

from typer.testing import CliRunner

from model import train
from model.definition import paths
from model.kinds import catalogue
from reproducers.record.schema import ROOT


def test_the_page_is_what_the_verb_prints():
    printed = CliRunner().invoke(train.app, ["--paths"])
    assert printed.exit_code == 0
    assert (ROOT / "docs" / "paths.md").read_text() == printed.stdout, "python -m model.train --paths > docs/paths.md"


def test_a_path_is_either_taken_or_asked_for():
    rows = [re.split(r" \| ", line) for line in paths.page().splitlines() if line.startswith("| `")]
    shown = [f"{row[0][3:-1]}={name}" for row in rows for cell in row[2:4] for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(shown) == sorted(catalogue.paths())
