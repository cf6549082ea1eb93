"""The SARIF log says what the audit says, in the published schema's form."""

import json

import pytest
from toy_environment import known

from patchlane.judged.answers import Answer, Place
from patchlane.listed.reading import Line
from patchlane.shown.sarif import sarif

VALUES = {"distribution": "toyup", "version": "1.0", "cost": "total forgets", "reason": "seen", "remedy": "mend it"}


def log(toy, **more):
    answer = Answer(pack="pack07", **(VALUES | {"state": "buggy"} | more))
    (run,) = sarif([answer], known(), toy.root, [])["runs"]
    return run


def test_a_bug_is_a_result_at_its_first_function(toy):
    file = toy.root / "site" / "toyup" / "core.py"
    run = log(toy, places=[Place(file=str(file), line=4, function="total"), Place(file=str(file), line=9)])
    (result,) = run["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "site/toyup/core.py"},
        "region": {"startLine": 4},
    }
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "pack07"
    assert result["level"] == "error" and "fix: mend it" in result["message"]["text"]


def test_a_file_elsewhere_is_named_whole_and_a_release_by_its_name(toy):
    (result,) = log(toy, places=[Place(file="/usr/lib/x.py", line=1)])["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///usr/lib/x.py"
    (result,) = log(toy)["results"]
    assert result["locations"][0]["logicalLocations"][0]["name"] == "toyup"


@pytest.mark.parametrize(("state", "notes"), [("unknown", 1), ("patched", 0), ("fixed", 0), ("absent", 0)])
def test_only_bugs_are_results_and_what_is_unknown_is_said(toy, state, notes):
    run = log(toy, state=state)
    assert run["results"] == [] and len(run["invocations"][0]["toolExecutionNotifications"]) == notes


def test_it_is_valid(toy):
    model = pytest.importorskip("pydantic_sarif.model").StaticAnalysisResultsFormatSarifVersion210JsonSchema
    answers = [Answer(pack="pack07", **VALUES, state=state) for state in ("buggy", "unknown")]
    line = Line(file="r.txt", line=3, text="?", why="no requirement")
    found = sarif(answers, known(), toy.root, [line])
    assert len(found["runs"][0]["invocations"][0]["toolExecutionNotifications"]) == 2
    model.model_validate_json(json.dumps(found))
    with pytest.raises(ValueError):
        model.model_validate_json(json.dumps(found | {"version": "2.0.0"}))
