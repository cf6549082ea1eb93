"""An audit as text and JSON: one cause is one line, and lines not understood are counted."""

import json
from pathlib import Path

from patchlane.judged.answers import Advice, Answer, exit_code
from patchlane.listed.reading import Reading
from patchlane.present.environment import of_reading
from patchlane.shown import report


def answer(number, state="unknown", remedy="python -m reproducers.run {} --at 1.0", **more):
    pack = f"pack{number:02d}"
    given = {"distribution": "toyup", "version": "1.0", "cost": f"bug {number}", "reason": "no receipt speaks of it"}
    return Answer(pack=pack, state=state, remedy=remedy.format(pack), **(given | more))


def seen(*missed):
    reading = Reading(Path("r.txt"))
    reading.require(1, "toyup", version="1.0")
    for line in missed:
        reading.miss(line, "two words", "no requirement")
    return of_reading(reading)


def as_json(answers, environment):
    return report.as_json(answers, [], environment, exit_code(answers, environment.unread))


def test_one_cause_is_grouped_once_with_one_command():
    said = report.text([answer(1), answer(2), answer(3, reason="another")], [], seen())
    assert said.count("no receipt speaks of it") == 1 and "run pack01 pack02 --at 1.0" in said
    assert said.splitlines()[-1].startswith("3 packs: 3 unknown")


def test_lines_not_understood_are_shown_and_counted():
    answers = [answer(1, "fixed", "")]
    said = report.text(answers, [], seen(7, 9))
    assert "r.txt:7" in said and "r.txt:9" in said and said.endswith("2 not understood")
    content = json.loads(as_json(answers, seen(7, 9)))
    assert content["exit_code"] == 77 and [x["line"] for x in content["not_understood"]] == [7, 9]
    assert json.loads(as_json(answers, seen()))["exit_code"] == 0


def test_one_line_a_distribution_says_what_stays():
    mend = {"distribution": "toyup", "release": "2", "command": "pip install toyup==2"}
    advice = Advice(**mend, stays=["pack02"], unknown=["pack03"])
    said = report.text([answer(1, "buggy"), answer(2, "buggy")], [advice], seen())
    assert said.count("pip install toyup==2") == 1 and "pack02" in said.split("pip install")[1]
