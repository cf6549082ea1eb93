"""Kept runs: whole, unaltered, and summed up by their records alone."""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import subprocess

import pytest
import recorded

from model.records import newest
from model.records.metrics import MetricsLog
from model.reports import kept as receipt
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz
from reproducers.record.schema import ROOT


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    with MetricsLog(folder) as log:
        for number in range(1, 13):
            log.write(recorded.step(number))
    (folder / ".metrics.lock").unlink(missing_ok=True)
    return folder


def test_the_committed_ones_are_what_they_say():
    assert receipt.faults() == []


def test_the_committed_ones_hold_nothing_that_can_be_drawn():
    names = {path.name for path in newest.KEPT.glob("*/*")}
    assert "metrics.jsonl" in {name.removesuffix(".xz") for name in names}
    assert {name for name in names if name.startswith(".") or name.endswith((".png", ".md", ".lock"))} == set()


def test_a_run_is_kept_with_what_it_has(run, tmp_path):
    for name in (*receipt.DRAWN, "coverage.json", ".metrics.lock"):
        (run / name).write_text("{}\n")
    kept = receipt.keep(run, "1xh200_x", tmp_path / "train")
    content = json.loads((kept / "receipt.json").read_bytes())
    assert set(content["files"]) == {"metrics.jsonl", "coverage.json"} and "run.json" in content["absent"]
    assert {path.name for path in kept.iterdir()} == {"receipt.json", *content["files"]}
    assert content["summary"] == receipt.summary(run)
    assert receipt.faults(tmp_path / "train") == []


@pytest.mark.parametrize("harm", ["altered", "gone", "stranger", "summary"])
def test_harm_is_named(run, tmp_path, harm):
    kept = receipt.keep(run, "x", tmp_path / "train")
    if harm == "altered":
        (kept / "metrics.jsonl").write_bytes((kept / "metrics.jsonl").read_bytes() + b"\n")
    elif harm == "gone":
        (kept / "metrics.jsonl").unlink()
    elif harm == "stranger":
        (kept / "notes.txt").write_text("by hand")
    else:
        content = json.loads((kept / "receipt.json").read_bytes())
        content["summary"]["last_loss"] = 0.1
        (kept / "receipt.json").write_text(json.dumps(content))
    (fault,) = receipt.faults(tmp_path / "train")
    assert fault.startswith({"stranger": "x/notes.txt ", "summary": "x: "}.get(harm, "x/metrics.jsonl "))
    second = receipt.keep(run, "y", tmp_path / "train")
    content = json.loads((second / "receipt.json").read_bytes())
    (second / "receipt.json").write_text(json.dumps(content | {"summary": {}}))
    assert [row.startswith("y: ") for row in receipt.faults(tmp_path / "train")] == [False, True]


def test_a_resumed_run_is_kept_with_each_of_its_starts(run, tmp_path):
    for name in ("run.json", "run.from_6.json", "run.from_12.json"):
        (run / name).write_text("{}")
    kept = receipt.keep(run, "x", tmp_path / "train")
    assert {"run.json", "run.from_6.json", "run.from_12.json"} <= json.loads((kept / "receipt.json").read_bytes())[
        "files"
    ].keys()
    assert receipt.faults(tmp_path / "train") == []


def test_a_file_that_was_absent_when_the_run_was_kept_is_a_stranger(run, tmp_path):
    kept = receipt.keep(run, "x", tmp_path / "train")
    (kept / "profile.md").write_text("made later\n")
    assert [fault.split()[0] for fault in receipt.faults(tmp_path / "train")] == ["x/profile.md"]


def test_a_drawn_file_of_an_early_receipt_may_be_gone_and_may_not_differ(run, tmp_path):
    kept = receipt.keep(run, "x", tmp_path / "train")
    content = json.loads((kept / "receipt.json").read_bytes())
    content["files"] |= {"loss.png": hashlib.sha256(b"drawn").hexdigest(), "run.json": hashlib.sha256().hexdigest()}
    (kept / "receipt.json").write_text(json.dumps(content))
    named = [fault.split()[0] for fault in receipt.faults(tmp_path / "train")]
    assert named == ["x/run.json"]  # no other may be gone
    (kept / "run.json").write_bytes(b"")
    (kept / "loss.png").write_bytes(b"drawn")
    assert receipt.faults(tmp_path / "train") == []
    (kept / "loss.png").write_bytes(b"drawn anew")
    assert [fault.split()[0] for fault in receipt.faults(tmp_path / "train")] == ["x/loss.png"]


def test_older_runs_are_packed_and_read_like_others(run, tmp_path):
    others = ["run.json", "coverage.json", "run.from_6.json"]
    for name in others:
        (run / name).write_text("{}\n")
    train = tmp_path / "train"
    kept = receipt.keep(run, "x", train)
    figures, day = receipt.summary(kept), receipt._day(kept)
    assert receipt.unpacked(day - datetime.timedelta(days=1), train) == []
    paths = receipt.unpacked(day, train)
    assert paths == [kept / name for name in ("metrics.jsonl", *others)]
    for path in paths:
        xz.pack(path)
    assert {path.name for path in kept.iterdir()} == {"receipt.json", *(f"{path.name}.xz" for path in paths)}
    assert receipt.faults(train) == [] and receipt.unpacked(day, train) == [] and receipt.summary(kept) == figures


def test_the_verb_packs_and_only_names_in_a_dry_run(run, tmp_path, monkeypatch, capsys):
    from model import receipt as verb

    train = tmp_path / "train"
    kept = receipt.keep(run, "x", train)
    monkeypatch.setattr(verb, "KEPT", train)
    monkeypatch.setattr(verb, "unpacked", lambda before: receipt.unpacked(before, train))
    verb.archive(days=0, dry_run=True)
    assert capsys.readouterr().out.split()[0] == "x/metrics.jsonl" and (kept / "metrics.jsonl").is_file()
    verb.archive(days=0, dry_run=False)
    assert {path.name for path in kept.iterdir()} == {"receipt.json", "metrics.jsonl.xz"} and not receipt.faults(train)


def test_no_code_names_a_kept_run():
    names = {path.parent.name for path in newest.KEPT.glob("*/receipt.json")}
    texts = [path for folder in ("model", "reproducers", "ci") for path in (ROOT / folder).rglob("*") if path.is_file()]
    said = {path: path.read_text(errors="replace") for path in texts if path.suffix in ("", ".py", ".yaml")}
    assert names and [(path.name, name) for path, text in said.items() for name in names if name in text] == []


@pytest.mark.parametrize("harm", ["cut off", "another", "both", "gone"])
def test_harm_to_a_packed_file_is_named(run, tmp_path, harm):
    kept = receipt.keep(run, "x", tmp_path / "train")
    path = kept / "metrics.jsonl"
    content = path.read_bytes()
    xz.pack(path)
    packed = xz.place(path)
    if harm == "cut off":
        packed.write_bytes(packed.read_bytes()[:-4])
    elif harm == "another":
        packed.write_bytes(xz.packed(content[:-1]))
    elif harm == "both":
        path.write_bytes(content)
    else:
        packed.unlink()
    (fault,) = receipt.faults(tmp_path / "train")
    assert fault.split()[0] == ("x/metrics.jsonl.xz" if harm == "both" else "x/metrics.jsonl")


@pytest.mark.parametrize("act", ["check", "table"])
def test_no_page_is_made_of_a_run_that_differs_from_its_receipt(run, tmp_path, monkeypatch, act):
    from model import receipt as verb

    (run / "run.json").write_text("{}")
    packed = receipt.keep(run, "x", tmp_path / "train") / "run.json.xz"
    xz.pack(packed.with_suffix(""))
    packed.write_bytes(xz.packed(b'{"ranks": 1}'))  # whole, and with other content
    monkeypatch.setattr(verb, "faults", lambda: receipt.faults(tmp_path / "train"))
    with pytest.raises(PatchlaneError) as refused:
        getattr(verb, act)()
    assert "x/run.json " in refused.value.what and refused.value.remedy == "git checkout HEAD -- receipts/train"


@pytest.mark.parametrize("name", ["../x", "X", ""])
def test_bad_names_are_refused(run, tmp_path, name):
    with pytest.raises(PatchlaneError, match=repr(name)):
        receipt.keep(run, name, tmp_path / "train")


def test_a_receipt_is_never_replaced(run, tmp_path):
    receipt.keep(run, "x", tmp_path / "train")
    with pytest.raises(PatchlaneError, match="train/x"):
        receipt.keep(run, "x", tmp_path / "train")


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(PatchlaneError, match=r"metrics\.jsonl"):
        receipt.keep(tmp_path, "x", tmp_path / "train")
    assert not (tmp_path / "train").exists()


def test_kept_runs_name_commits_that_can_be_checked_out():
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True)
    if git(["git", "rev-parse", "--is-shallow-repository"]).stdout.strip() != "false":
        pytest.skip("a clone without its history")
    runs = xz.found(newest.KEPT, "*/run.json")
    named = {path.parent.name: json.loads(xz.data(path))["project"]["sha"] for path in runs}
    lost = [name for name, sha in named.items() if git(["git", "merge-base", "--is-ancestor", sha, "HEAD"]).returncode]
    assert named
    assert lost == []


def test_a_figure_of_the_page_that_was_changed_is_named_with_its_command(tmp_path, monkeypatch):
    """The page is compared with what the kept runs give; here these are none."""
    from model import receipt

    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    monkeypatch.setattr(receipt.benchmarks, "page", lambda kept: "123 tokens/s\n")
    page.write_text("123 tokens/s\n")
    monkeypatch.setattr(receipt, "ROOT", tmp_path)
    monkeypatch.setattr(receipt, "faults", list)
    receipt.check()
    page.write_text("124 tokens/s\n")
    with pytest.raises(PatchlaneError) as caught:
        receipt.check()
    assert page.name in caught.value.what and caught.value.remedy == receipt.benchmarks.COMMAND
