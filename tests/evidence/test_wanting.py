"""A pack is not run again while its receipt holds; each change that voids the receipt brings the pack back."""

import datetime
from pathlib import Path

import pytest
from toy import FIRST, HEAD, PUBLISHED, REPRODUCER, SOURCE, TOTAL, edited, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.evidence import receipts, wanting
from reproducers.record.schema import load_pack


@pytest.fixture
def out(toy, monkeypatch):
    """A folder with a receipt of the toy at its live pin."""
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    receipts.write(toy.run(toy.pack()), toy.root / "out", "toy", [], {})
    return toy.root / "out"


def left(toy, *folders, lane="cpu", at="live"):
    return [pack.id for pack in wanting.wanting([load_pack(toy.folder)], lane, at, list(folders))]


def test_a_receipt_that_holds(toy, out):
    assert left(toy, toy.root / "none") == ["pack07"]
    assert left(toy, toy.root / "none", out) == []
    assert left(toy, out, lane="cuda") == ["pack07"]


def test_another_reproducer_or_patch(toy, out):
    write_tree(toy.folder, {"reproducer.py": REPRODUCER + "\n"})
    assert left(toy, out) == ["pack07"]
    write_tree(toy.folder, {"reproducer.py": REPRODUCER})
    assert left(toy, out) == []
    write_tree(toy.folder, {"fix.patch": "Subject: another\n" + HEAD + toy.patch(edited(TOTAL, FIRST))})
    assert left(toy, out) == ["pack07"]


def test_another_pin(toy, out):
    toy.publishes(PUBLISHED.replace('"1.0"', '"1.1"'))
    record = (toy.folder / "pack.yaml").read_text()
    write_tree(toy.folder, {"pack.yaml": record.replace('"1.0"', '"1.1"')})
    assert left(toy, out) == ["pack07"]


def test_a_receipt_that_was_altered_or_lost_its_log(toy, out):
    log = next(out.glob("07/*.log"))
    text = log.read_text()
    log.write_text(text + "more\n")
    assert left(toy, out) == ["pack07"]
    log.write_text(text)
    assert left(toy, out) == []
    log.unlink()
    assert left(toy, out) == ["pack07"]


def test_too_old(toy, out, monkeypatch):
    later = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=181)
    monkeypatch.setattr(wanting, "today", lambda: later)
    assert left(toy, out) == ["pack07"]


def test_an_unexpected_verdict_or_one_arm_is_no_answer(toy, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    pack = toy.pack()
    receipts.write(toy.run(pack, edited(TOTAL, FIRST)), toy.root / "healthy", "toy", [], {})
    receipts.write(toy.run(pack, arm="pristine"), toy.root / "one", "toy", [], {})
    assert left(toy, toy.root / "healthy", toy.root / "one") == ["pack07"]


def test_only_pins_have_receipts_to_go_by(toy):
    toy.pack()
    with pytest.raises(PatchlaneError):
        left(toy, toy.root, at="0123456789ab")


@pytest.mark.parametrize(("arm", "upstream"), [("pristine", None), ("both", Path())])
def test_one_arm_or_a_folder_has_no_receipts_to_go_by(toy, arm, upstream):
    with pytest.raises(PatchlaneError):
        wanting.left([toy.pack()], "cpu", "live", [toy.root], arm, upstream)


def test_the_runner_runs_what_is_left(toy):
    toy.publish(SOURCE)
    repo = toy.repository(toy.pack())

    def ended(*args):
        process = toy.verb(repo, "run", *args)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        return output

    chosen = ("7", "--missing-from", "build/receipts")
    assert ended("--list", *chosen).startswith("pack07")
    ended(*chosen)
    assert ended("--list", *chosen) == ended(*chosen) == ""
    assert len(list((repo / "build" / "receipts").rglob("*.json"))) == 1
    ended("7")
    assert len(list((repo / "build" / "receipts").rglob("*.json"))) == 2
