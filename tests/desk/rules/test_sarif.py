"""The SARIF log says what the report says, in the published schema's form."""

import json

import pytest

from reproducers.desk.rules.engine import Fault, Report, Skipped, meanings
from reproducers.desk.rules.sarif import sarif

FAULT = Fault("gfm-fence", "pack01", "packs/01_x/body.md.j2", 3, "never closed", "close it")
KEPT = Fault("gfm-table", "pack01", "packs/01_x/body.md.j2", 5, "2 cells", "give it 3")
REPORT = Report(["pack01"], [FAULT], [KEPT], [Skipped("patch-clean", "pack01", "no tree")])


def test_results_rules_and_notifications():
    (run,) = sarif(REPORT, meanings())["runs"]
    one, two = run["results"]
    assert one["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "packs/01_x/body.md.j2"},
        "region": {"startLine": 3},
    }
    rules = run["tool"]["driver"]["rules"]
    assert rules[one["ruleIndex"]]["id"] == one["ruleId"] == "gfm-fence"
    assert "suppressions" not in one and two["suppressions"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["associatedRule"]["id"] == "patch-clean" and "no tree" in note["message"]["text"]


def test_it_is_valid():
    model = pytest.importorskip("pydantic_sarif.model").StaticAnalysisResultsFormatSarifVersion210JsonSchema
    log = sarif(REPORT, meanings())
    model.model_validate_json(json.dumps(log))
    with pytest.raises(ValueError):
        model.model_validate_json(json.dumps(log | {"version": "2.0.0"}))
