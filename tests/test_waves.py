"""The verb: what is a crash, the text, the JSON, and how it ends."""

import datetime
import json

import pytest
import yaml
from made import CRASH, arm, check, details
from toy import FIRST, RECORD, REPRODUCER, TOTAL, edited
from typer.testing import CliRunner

from reproducers import waves
from reproducers.desk.waves.classes import bug_checks, wave_class
from reproducers.desk.waves.proposal import proposal_of
from reproducers.evidence import manifest, receipts
from reproducers.record.schema import ROOT, Filing, load_packs

CRASHED = check("first", signature=CRASH)
NUMBER = check(measured=1.0, limit=1e-9)
NO_CRASH = "".join(line for line in REPRODUCER.splitlines(True) if "p.attempt" not in line)


def record(number, **changed):
    """A record of the toy that may be filed as an issue of a repository; dotted keys are written A__B."""
    values = yaml.safe_load(RECORD) | {"number": number, "title": f"bug {number}, [red]; of many"}
    values["filing"]["decision"] = "issue"
    for name, value in changed.items():
        *path, last = name.split("__")
        place = values
        for key in path:
            place = place[key]
        place[last] = value
    return yaml.safe_dump(values)


@pytest.fixture
def desk(toy, monkeypatch):
    """A folder with toy packs and receipts in which the verb runs."""
    monkeypatch.setattr(waves, "ROOT", toy.root)
    toy.patched = toy.patch(edited(TOTAL, FIRST))
    return toy


def filed_away(toy, number, reproducer=REPRODUCER, days=0, **changed):
    """Write a pack and a receipt of a run, by default the first day's."""
    text = reproducer.replace("pack=7", f"pack={number}")
    pack = toy.pack(toy.patched, text, record(number, **changed), f"{number:02d}_toy")
    run = toy.run(pack)
    run.started = datetime.datetime(2026, 11, 20 + days, tzinfo=datetime.UTC)
    return receipts.write(run, toy.root / "receipts", "toy", [], {})


def verb(*args):
    return CliRunner().invoke(waves.app, ["--date", "2026-11-23", *map(str, args)])


def proposed(*args):
    done = verb("--json", *args)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "changed, checks, expected",
    [
        ({}, [CRASHED], "crash fix"),
        ({}, [NUMBER, CRASHED], "crash fix"),
        ({"kind": "memory"}, [CRASHED], "crash fix"),
        ({}, [NUMBER] * 2 + [CRASHED], "fix"),  # raising is not what it mostly does wrong
        ({"category": "graph safety"}, [CRASHED], "fix"),
        ({}, [], "fix"),
        ({"kind": "memory"}, [], "fix"),
        ({}, [check("first", "healthy", signature=CRASH)], "fix"),
        ({}, [check("first", "different", signature=CRASH)], "fix"),
        ({}, [check("first", "failed", "guard", limit="no exception")], "fix"),
        ({}, [NUMBER], "fix"),
        ({"kind": "refactor"}, [CRASHED], "refactor"),
        ({"kind": "report"}, [CRASHED], "report"),
        ({"kind": "guard"}, [CRASHED], "report"),
        ({"filing": Filing(decision="comment", reason="x")}, [CRASHED], "comment"),
        ({"kind": "report", "filing": Filing(decision="comment", reason="x")}, [], "comment"),
    ],
)
def test_the_class_is_derived(toy, changed, checks, expected):
    assert wave_class(toy.pack().model_copy(update=changed), checks) == expected


def test_a_crash_is_read_from_the_newest_receipt(desk):
    filed_away(desk, 7)
    filed_away(desk, 8, NO_CRASH)
    entries = manifest.build(load_packs(desk.packs), desk.root / "receipts")
    assert [item.name for item in bug_checks(entries["pack07"], desk.root / "receipts")] == ["total", "first"]
    assert {item["pack"]: item["class"] for item in proposed()["explanations"]} == {
        "pack07": "crash fix",
        "pack08": "fix",
    }
    filed_away(desk, 7, NO_CRASH, days=1)
    assert proposed()["explanations"][0]["class"] == "fix"


def test_of_repeats_the_last_counts():
    arms = [arm("bug", check(name)) for name in ("one", "two")]
    assert [item.name for item in details(arms).checks("pristine")] == ["two"]


def test_the_proposal_as_json_and_as_text(desk):
    for number in (1, 2, 3, 4, 5):
        filed_away(desk, number, **({"filing__decision": "hold"} if number == 2 else {}))
    first = {"number": 1, "date": "2026-11-23", "packs": ["pack01", "pack03"]}
    content = proposed()
    assert content["waves"] == [first] and content["last_filed"] is None
    assert [item["wave"] for item in content["explanations"]] == [1, None, 1, 2, 2]
    facts = {"pack": "pack01", "title": "bug 1, [red]; of many", "repository": "toy/toyup", "as": "issue"}
    assert content["explanations"][0].items() >= (facts | {"class": "crash fix", "blockers": []}).items()
    assert [blocker["rule"] for blocker in content["explanations"][1]["blockers"]] == ["decision"]
    assert [wave["date"] for wave in proposed("--all", "--gap", 3)["waves"]] == ["2026-11-23", "2026-11-26"]
    assert len(proposed("--size", 4)["waves"][0]["packs"]) == 4

    lines = verb("--all").output.splitlines()
    assert lines[0] == "Wave 1: Monday 2026-11-23" and lines[3] == "Wave 2: Wednesday 2026-11-25"
    assert lines[1] == "  pack01  issue: bug 1, [red]; of many"
    assert [line[:14] for line in lines[6:8]] == ["pack01  wave 1", "pack02  out: h"] and len(lines) == 12
    assert lines[11] == "fix: packs/02_toy/pack.yaml, filing: another decision, with its reason (pack02)"
    assert not any(line.startswith("Wave 2") for line in verb().output.splitlines())


def test_the_last_filing_is_read_from_the_records(desk):
    filed_away(desk, 1)
    filed = {"filed": "issue", "filed_url": "https://github.com/toy/toyup/issues/1"}
    filed["filed_on"] = datetime.date(2026, 11, 20)
    filed_away(desk, 2, **{f"upstream_state__{name}": value for name, value in filed.items()})
    content = proposed("--date", "2026-11-20")
    assert content["last_filed"] == "2026-11-20" and content["waves"][0]["date"] == "2026-11-23"


def test_nothing_is_ready(desk):
    desk.pack(desk.patched)
    done = verb()
    assert done.exit_code == 0 and done.output.splitlines()[1].startswith("pack07  out: none: ")
    content = proposed()
    assert content["waves"] == [] and [item["wave"] for item in content["explanations"]] == [None]


def test_how_it_ends(toy):
    root = toy.repository(toy.pack())
    for args, code, told in [
        ([], 0, "pack07"),
        (["--size", "5"], 2, "--size"),
        (["--gap", "1"], 2, "--gap"),
        (["--date", "tomorrow"], 2, "--date"),
        (["--date", "0001-01-01"], 2, "fix: name a day near today"),
    ]:
        process = toy.verb(root, "waves", *args)
        out, err = process.communicate()
        assert process.returncode == code and told in out + err and "Traceback" not in err, (args, out, err)


def test_the_real_packs():
    proposal = proposal_of(ROOT, datetime.date(2026, 11, 23), 3, 2)
    assert [item.pack.number for item in proposal.explanations] == [pack.number for pack in load_packs()]
    assert all(item.wave or item.blockers for item in proposal.explanations)


def test_a_remedy_that_packs_share_is_told_once(desk):
    for number in (1, 2, 3):
        filed_away(desk, number, filing__decision="hold")
    fixes = [line for line in verb().output.splitlines() if line.startswith("fix: ")]
    assert fixes == ["fix: packs/NN_NAME/pack.yaml, filing: another decision, with its reason (pack01, pack02, pack03)"]
