"""The verb: what is a crash, the table, the JSON, the calendar, and how it ends."""

import datetime
import json
import subprocess
import sys

import pytest
import yaml
from icalendar import Calendar
from made import CRASH, arm, check, details
from toy import FIRST, RECORD, REPRODUCER, TOTAL, edited
from typer.testing import CliRunner

from reproducers import waves
from reproducers.desk.waves import proposal
from reproducers.desk.waves.classes import bug_checks, wave_class
from reproducers.evidence import manifest, receipts
from reproducers.record.schema import ROOT, Filing, load_packs

CRASHED = check("first", signature=CRASH)
NUMBER = check(measured=1.0, limit=1e-9)
NO_CRASH = "".join(line for line in REPRODUCER.splitlines(True) if "p.attempt" not in line)
CLIENTS = ("requests", "urllib3", "httpx", "aiohttp", "http.client", "urllib.request", "pypi_simple", "truststore")


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
    monkeypatch.setenv("COLUMNS", "200")
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


def plan(*args):
    done = verb("--json", *args)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "changed, checks, found",
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
def test_the_class_is_derived(toy, changed, checks, found):
    assert wave_class(toy.pack().model_copy(update=changed), checks) == found


def test_a_crash_is_read_from_the_newest_receipt(desk):
    filed_away(desk, 7)
    filed_away(desk, 8, NO_CRASH)
    entries = manifest.build(load_packs(desk.packs), desk.root / "receipts")
    assert [found.name for found in bug_checks(entries["pack07"], desk.root / "receipts")] == ["total", "first"]
    assert {item["pack"]: item["class"] for item in plan()["explanations"]} == {"pack07": "crash fix", "pack08": "fix"}
    filed_away(desk, 7, NO_CRASH, days=1)
    assert plan()["explanations"][0]["class"] == "fix"


def test_of_repeats_the_last_counts():
    arms = [arm("bug", check(name)) for name in ("one", "two")]
    assert [found.name for found in details(arms).checks("pristine")] == ["two"]


def test_the_plan_as_json_and_as_a_table(desk):
    for number in (1, 2, 3, 4, 5):
        filed_away(desk, number, **({"filing__decision": "hold"} if number == 2 else {}))
    found = plan()
    assert [wave["number"] for wave in found["waves"]] == [1] and found["schema_version"] == 1
    assert found["waves"][0]["date"] == "2026-11-23" and found["waves"][0]["repositories"] == ["toy/toyup"]
    packs = found["waves"][0]["packs"]
    assert packs[0] == {"id": "pack01", "title": "bug 1, [red]; of many", "class": "crash fix", "as": "issue"}
    assert [pack["id"] for pack in packs] == ["pack01", "pack03"]
    assert [item["wave"] for item in found["explanations"]] == [1, None, 1, 2, 2]
    assert [wave["date"] for wave in plan("--all", "--gap", 3)["waves"]] == ["2026-11-23", "2026-11-26"]
    assert len(plan("--size", 4)["waves"][0]["packs"]) == 4

    text = verb("--all").output
    assert "Wave 1: Monday 2026-11-23 (the day asked, nothing was filed yet)" in text and "Wave 2: Wednesday" in text
    assert "bug 1, [red]; of many" in text
    assert "pack01  wave 1: crash fix, toy/toyup, 2026-11-23: first in order" in text
    assert "pack02  out: hold: a toy [fix: packs/02_toy/pack.yaml, filing: another decision, with its reason]" in text
    assert "Wave 2" not in verb().output


def test_the_last_filing_is_read_from_the_records(desk):
    filed_away(desk, 1)
    filed = {"filed": "issue", "filed_url": "https://github.com/toy/toyup/issues/1"}
    day = datetime.date(2026, 11, 20)
    filed_away(
        desk, 2, **{f"upstream_state__{name}": value for name, value in filed.items()}, upstream_state__filed_on=day
    )
    found = plan("--date", "2026-11-20")
    assert found["last_filing"] == {"date": "2026-11-20", "packs": ["pack02"]}
    assert found["waves"][0]["date"] == "2026-11-23" and "for 2026-11-22 is a Sunday" in found["waves"][0]["why"]


def test_the_calendar(desk, tmp_path):
    for number in (1, 2, 3):
        filed_away(desk, number)
    path = tmp_path / "new" / "waves.ics"
    assert verb("--all", "--size", 2, "--ics", path).exit_code == 0
    data = path.read_bytes()
    events = Calendar.from_ical(data).walk("VEVENT")
    assert [str(event["uid"]) for event in events] == [
        "pack01@patchlane",
        "pack02@patchlane",
        "pack03@patchlane",
    ]
    first = events[0]
    assert (first.start, first.end) == (datetime.date(2026, 11, 23), datetime.date(2026, 11, 24))
    assert first.decoded("dtstamp") == datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
    assert str(first["summary"]) == "File pack01: bug 1, [red]; of many"
    assert str(first["description"]).splitlines() == [
        "pack01: bug 1, [red]; of many",
        "toy/toyup, as issue",
        "python -m reproducers.preflight pack01",
        "Wave 1, with:",
        "pack02: bug 2, [red]; of many",
    ]
    assert str(events[2]["description"]).endswith("Wave 2, alone")
    verb("--all", "--size", 2, "--ics", path)
    assert path.read_bytes() == data
    verb("--size", 2, "--ics", path)
    assert len(Calendar.from_ical(path.read_bytes()).walk("VEVENT")) == 2


def test_nothing_is_ready(desk, tmp_path):
    desk.pack(desk.patched)
    done = verb("--ics", tmp_path / "waves.ics")
    assert done.exit_code == 0 and "Nothing is ready, because:\npack07  out: none: a toy [fix:" in done.output
    assert "not written: no wave" in done.output and not (tmp_path / "waves.ics").exists()
    assert plan()["waves"] == []


def test_how_it_ends(toy, tmp_path):
    root = toy.repository(toy.pack())
    for args, code, said in [
        ([], 0, "Nothing is ready"),
        (["--size", "5"], 2, "--size"),
        (["--gap", "1"], 2, "--gap"),
        (["--date", "tomorrow"], 2, "--date"),
        (["--date", "0001-01-01"], 2, "fix: name a day near today"),
    ]:
        process = toy.verb(root, "waves", *args)
        out, err = process.communicate()
        assert process.returncode == code and said in out + err and "Traceback" not in err, (args, out, err)


def test_a_file_that_cannot_be_written(desk, tmp_path):
    filed_away(desk, 1)
    done = verb("--ics", tmp_path)
    assert done.exit_code and "Is a directory" in str(done.exception) and "fix:" in str(done.exception)


def test_the_real_packs():
    found = proposal.plan_of(ROOT / "packs", ROOT / "receipts", datetime.date(2026, 11, 23), 3, 2)
    assert [item.pack.number for item in found.explanations] == [pack.number for pack in load_packs()]
    assert all(item.wave or item.blockers for item in found.explanations)


def test_no_network_client_is_imported(desk, tmp_path):
    filed_away(desk, 1)
    code = (
        "import pathlib, sys, reproducers.waves as waves\n"
        f"waves.ROOT = pathlib.Path({str(desk.root)!r})\n"
        f"waves.app(['--date', '2026-11-23', '--all', '--ics', {str(tmp_path / 'w.ics')!r}], standalone_mode=False)\n"
        f"print([name for name in {CLIENTS!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
    assert (tmp_path / "w.ics").exists()
