"""The log: what its reader refuses, and the page that is made from it."""

import pytest
import yaml
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from reproducers import explain
from reproducers.record.schema import ROOT
from reproducers.studies import log

ITEM = {
    "date": "2026-11-23",
    "area": "engine",
    "question": "Is it fast?",
    "tried": "a|b",
    "result": "3 s",
    "decision": "taken",
}


@pytest.fixture
def written(tmp_path):
    """A function that writes items, each ITEM with changes, and returns the file."""

    def write(*items):
        path = tmp_path / "log.yaml"
        path.write_text(yaml.safe_dump([ITEM | item for item in items]))
        return path

    return write


def test_the_page_is_what_the_verb_prints():
    printed = CliRunner().invoke(explain.app, ["--log"])
    assert printed.exit_code == 0
    assert (ROOT / "docs" / "log.md").read_text() == printed.stdout, "python -m reproducers.explain --log > docs/log.md"


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ([{"decision": "kept"}], "decision"),
        ([{"result": "word " * 60}], "64 words"),
        ([{"commit": "main"}], "commit"),
        ([{"measured": "3 s"}], "measured"),
        ([{"receipts": ["no_such_run"]}], "receipts/train/no_such_run"),
        ([{"date": "2026-11-22"}, {}], "2026-11-23"),
    ],
)
def test_an_item_that_is_wrong_is_named(written, items, named):
    with pytest.raises(PatchlaneError) as caught:
        log.read(written(*items))
    assert named in caught.value.what and "log.yaml" in caught.value.remedy


def test_a_file_that_is_no_yaml_is_refused(tmp_path):
    (tmp_path / "log.yaml").write_text("- {date")
    with pytest.raises(PatchlaneError):
        log.read(tmp_path / "log.yaml")


def test_what_is_open_and_what_was_rejected_come_first(written):
    kinds = ({"decision": "taken"}, {"decision": "rejected", "tried": "no"}, {"decision": "open", "tried": "still"})
    rows = [line for line in log.page(log.read(written(*kinds))).splitlines() if line.startswith("| Is it fast?")]
    assert [row.split(" | ")[1] for row in rows] == ["still", "no", "a\\|b"]


def test_a_row_links_to_its_runs_and_names_its_commit():
    item = log.Item.model_validate(ITEM | {"receipts": ["run_1", "run_2"], "commit": "abc1234"})
    row = log.page([item]).splitlines()[-1]
    assert row.endswith("| [1](../receipts/train/run_1), [2](../receipts/train/run_2), `abc1234` |")
