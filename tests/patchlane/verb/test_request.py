"""What an audit is asked: packs by name, day and harm, one release, options that go together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toy_environment import installed, known_of

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.known import data
from patchlane.verb.command import parser
from patchlane.verb.request import Request, answered, chosen


@pytest.fixture
def ours(toy, monkeypatch):
    """The toy's index is the one that an audit takes; the crash of pack08 is known since 28 November."""
    pack = toy.pack()
    other = toy.pack(record=(pack.folder / "pack.yaml").read_text().replace("number: 7", "number: 8"), folder="08_toy")
    made = known_of(pack, other)
    packs = {"pack07": replace(made.packs["pack07"], harm="wrong numbers", effect="half of all sums are wrong")}
    packs["pack08"] = replace(made.packs["pack08"], harm="crash", added="2026-11-28")
    seen = replace(made, index=replace(made.index, packs=packs))
    monkeypatch.setattr(data, "known", lambda name=None: seen)
    return seen


def test_packs_are_chosen_by_name_and_day(ours):
    assert [*chosen(ours, Request(packs=("8", "pack07"))).packs] == ["pack08", "pack07"]
    assert [*chosen(ours, Request(ignore=("07",))).packs] == ["pack08"]
    for day, packs in (("2026-11-24", 2), ("2026-11-25", 1), ("2026-11-28", 1), ("2026-11-29", 0)):
        assert len(chosen(ours, Request(since=day)).packs) == packs


@pytest.mark.parametrize(
    ("fails", "code"), [(None, 1), ("crash", 1), ("wrong numbers", 1), ("memory,slow", 0), ("slow, crash", 1)]
)
def test_it_fails_on_these_harms_only(ours, tmp_path, fails, code):
    request = Request(python=installed(tmp_path / "site"), fail_on=fails)
    assert answered(request) == code


def test_a_bug_of_no_known_harm_fails_always(ours, tmp_path, monkeypatch):
    packs = {name: replace(pack, harm=None) for name, pack in ours.packs.items()}
    monkeypatch.setattr(data, "known", lambda name=None: replace(ours, index=replace(ours.index, packs=packs)))
    assert answered(Request(python=installed(tmp_path / "site"), fail_on="memory")) == Exit.CONTRADICTED


@pytest.mark.parametrize(("release", "code", "state"), [("1.0", 1, "buggy"), ("2.0", 0, "fixed"), ("9", 77, "unknown")])
def test_one_release_is_a_table(ours, capsys, release, code, state):
    assert answered(Request(release=f"Toyup=={release}")) == code
    title, head, first, second, count = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == (f"toyup {release}", ["pack", "answer", "harm", "effect"])
    assert first.split()[:4] == ["pack07", state, "wrong", "numbers"] and first.endswith("half of all sums are wrong")
    assert second.split()[:3] == ["pack08", state, "crash"] and second.endswith(ours.packs["pack08"].effect)
    assert count == f"2 packs: 2 {state}"
    answered(Request(release=f"toyup=={release}", as_json=True))
    assert {answer["state"] for answer in json.loads(capsys.readouterr().out)["answers"]} == {state}


def test_apply_and_revert_from_the_command_line(ours, tmp_path, capsys):
    site = installed(tmp_path / "site")
    (site / "toyup-1.0.dist-info" / "RECORD").write_text("toyup/core.py,,\n")
    before = (site / "toyup" / "core.py").read_bytes()
    only = Request(packs=("pack07",), python=site)
    assert answered(replace(only, apply=True, dry_run=True)) == Exit.CONTRADICTED
    assert "fits     pack07" in capsys.readouterr().out and (site / "toyup" / "core.py").read_bytes() == before
    assert answered(replace(only, apply=True)) == Exit.OK
    said = capsys.readouterr().out
    assert "applied  pack07" in said and f"--revert --python {site}" in said and "1 patched" in said
    assert answered(replace(only, revert=True)) == Exit.CONTRADICTED
    assert "reverted pack07" in capsys.readouterr().out and (site / "toyup" / "core.py").read_bytes() == before
    assert answered(replace(only, revert=True)) == Exit.CONTRADICTED
    assert "nothing to revert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"packs": ("x",)}, "'x'"),
        ({"packs": ("pack09",)}, "pack09"),
        ({"since": "yesterday"}, "--since"),
        ({"fail_on": "crash,boom"}, "'boom'"),
        ({"release": "toyup"}, "NAME==VERSION"),
        ({"release": "other==1.0"}, "no pack is of other"),
        ({"release": "toyup==1.0", "requirements": "r.txt"}, "--requirements and --release"),
        ({"apply": True, "revert": True}, "--apply and --revert"),
        ({"apply": True, "requirements": "r.txt"}, "--apply"),
        ({"dry_run": True}, "--dry-run"),
        ({"sarif": Path("-"), "release": "toyup==1.0"}, "--sarif -"),
    ],
)
def test_what_does_not_go_is_refused_with_its_remedy(ours, fields, said):
    with pytest.raises(PatchlaneError) as error:
        answered(Request(**fields))
    assert said in error.value.what and error.value.remedy


@pytest.mark.parametrize("option", ["--python", "--requirements", "--sarif"])
def test_an_empty_path_is_no_folder(option):
    with pytest.raises(PatchlaneError) as error:
        parser().parse_args([option, ""])
    assert error.value.exit_code == Exit.USAGE
