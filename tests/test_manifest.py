"""The manifest is a pure function of packs and receipts, and is either old or new."""

import random
import signal
import time

import pytest
import yaml
from toy import TOTAL, edited

from reproducers.manifest import build, import_receipts
from reproducers.receipts import write
from reproducers.schema import load_packs
from reproducers.session import places
from reproducers.verification import verify_all


@pytest.fixture
def repo(toy):
    """A copy of the engine with the toy pack, and one receipt to import."""
    pack = toy.pack()
    root = toy.repository(pack)
    toy.receipt = write(toy.run(pack), root / "build/receipts", "toy", ["pack07"], places(toy.store))
    return root


def verb(toy, root, *args):
    process = toy.verb(root, "manifest", *args)
    out, err = process.communicate()
    return process.returncode, out + err


def entry(root):
    return yaml.safe_load((root / "manifest.yaml").read_text())["packs"]["pack07"]


def test_refresh_check_and_staleness(toy, repo):
    code, out = verb(toy, repo, "refresh")
    assert (code, entry(repo)["state"]) == (0, "draft"), out
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert (code, entry(repo)["state"]) == (0, "validated"), out
    assert entry(repo)["lanes"]["cpu"]["sentinels"] == ["BUG_REPRODUCED", "FIX_VALIDATED"]
    before = (repo / "manifest.yaml").read_bytes()
    assert "manifest.yaml is current" in verb(toy, repo, "refresh", "build/receipts")[1]
    assert (repo / "manifest.yaml").read_bytes() == before
    assert verb(toy, repo, "check")[0] == 0

    (repo / "manifest.yaml").write_bytes(before + b"# edited\n")
    code, out = verb(toy, repo, "check")
    assert code == 1
    assert "not current" in out
    (repo / "manifest.yaml").write_bytes(before)

    table = repo / "packs/README.md"
    assert "| validated | 1.0 | – | REPRODUCED_AND_FIXED | none | [2" in table.read_text()
    table.write_text("edited")
    assert "packs/README.md is not current" in verb(toy, repo, "check")[1]
    verb(toy, repo, "refresh")

    reproducer = repo / "packs/07_toy/reproducer.py"
    reproducer.write_text(reproducer.read_text() + "\n# changed\n")
    assert verb(toy, repo, "check")[0] == 1
    verb(toy, repo, "refresh")
    assert entry(repo)["state"] == "stale"
    assert entry(repo)["lanes"]["cpu"]["changed_since"] == ["reproducer.py"]


def test_changed_patch_is_stale(toy, repo):
    import_receipts(repo / "build/receipts", repo / "receipts")
    (repo / "packs/07_toy/fix.patch").write_text(toy.patch(edited(TOTAL)))
    found = build(load_packs(repo / "packs"), repo / "receipts")["packs"]["pack07"]
    assert (found["state"], found["lanes"]["cpu"]["changed_since"]) == ("stale", ["fix.patch"])


def test_check_fails_after_an_edit_of_a_receipt(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    log = next((repo / "receipts/07").glob("*.log"))
    log.write_text("edited\n")
    code, out = verb(toy, repo, "check")
    assert code == 1
    assert "was altered" in out


def test_tampered_receipts_are_not_imported(toy, repo):
    toy.receipt.write_text(toy.receipt.read_text().replace('"toy"', '"joy"'))
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert code == 2
    assert "do not verify" in out
    assert "the statement was altered" in out
    assert not (repo / "receipts").exists()
    assert not (repo / "manifest.yaml").exists()


def test_source_must_be_a_folder(toy, repo):
    code, out = verb(toy, repo, "refresh", "nowhere")
    assert (code, "nowhere is not a folder" in out) == (2, True)


def test_sigkill_at_random_moments(toy, repo):
    """50 kills while two states of the manifest alternate: it is always one of them, and receipts always verify."""
    target, chance = repo / "manifest.yaml", random.Random(3)
    record = repo / "packs/07_toy/pack.yaml"
    texts = [record.read_text(), record.read_text().replace("title: total", "title: Total")]
    verb(toy, repo, "refresh", "build/receipts")
    allowed = set()
    for text in texts:
        record.write_text(text)
        started = time.monotonic()
        verb(toy, repo, "refresh")
        took = time.monotonic() - started
        allowed.add(target.read_bytes())
    assert len(allowed) == 2
    changes = 0
    for number in range(50):  # earlier after a kill that came too late, later after one too early, as the load changes
        record.write_text(texts[number % 2])
        before = target.read_bytes()
        for path in (repo / "receipts/07").iterdir():  # so that the import is under way at some of the kills
            path.unlink()
        process = toy.verb(repo, "manifest", "refresh", "build/receipts")
        time.sleep(chance.uniform(0.5, 1.05) * took)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert target.read_bytes() in allowed
        changed = target.read_bytes() != before
        changes += changed
        took *= 0.95 if changed else 1.05
    assert 0 < changes < 50
    assert verb(toy, repo, "refresh", "build/receipts")[0] == 0
    assert verb(toy, repo, "check")[0] == 0
    assert verify_all(repo / "receipts") == {}
