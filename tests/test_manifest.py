"""The manifest is a pure function of packs and receipts, and is either old or new."""

import dataclasses
import datetime
import hashlib
import random
import shutil
import signal
import time

import made
import pytest
import yaml
from forged import everywhere
from tiers import sampled
from toy import FIRST, PUBLISHED, SOURCE, TOTAL, edited, git, write_tree

from reproducers.evidence.manifest import build, demotions, import_receipts
from reproducers.evidence.receipts import write
from reproducers.evidence.saving import places
from reproducers.evidence.verification import verify_all
from reproducers.record.origin import Origin
from reproducers.record.schema import load_packs


@pytest.fixture
def repo(toy):
    """A copy of the engine with the toy pack, and one receipt to import."""
    pack = toy.pack()
    root = toy.repository(pack)
    toy.receipt = write(toy.ran(pack), root / "build/receipts", "toy", ["pack07"], places(toy.store))
    return root


def verb(toy, root, *args):
    process = toy.verb(root, "manifest", *args)
    out, err = process.communicate()
    return process.returncode, out + err


def again(toy, repo, source=SOURCE, change=lambda run: None, minutes=1, **request):
    """A further receipt, a minute or more later, in the folder to import from."""
    run = toy.ran(load_packs(repo / "packs")[0], source, **request)
    run.started += datetime.timedelta(minutes=minutes)
    change(run)
    return write(run, repo / "build/receipts", "toy", ["pack07"], places(toy.store))


def kept(repo):
    """Everything that refresh may write, as it is."""
    places = [*repo.glob("receipts/*/*"), repo / "manifest.yaml", repo / "packs/README.md"]
    return {path: path.read_bytes() for path in places if path.is_file()}


def entry(root):
    return yaml.safe_load((root / "manifest.yaml").read_text())["packs"]["pack07"]


def test_refresh_check_and_staleness(toy, repo):
    code, out = verb(toy, repo, "refresh", "--no-import")
    assert (code, entry(repo)["state"]) == (0, "draft"), out
    code, out = verb(toy, repo, "refresh")
    assert (code, entry(repo)["state"], "build/receipts" in out) == (0, "validated", True), out
    assert "build/receipts" not in verb(toy, repo, "refresh")[1], "nothing new is imported"
    assert entry(repo)["lanes"]["cpu"]["sentinels"] == ["BUG_REPRODUCED", "FIX_VALIDATED"]
    before = (repo / "manifest.yaml").read_bytes()
    assert verb(toy, repo, "refresh", "build/receipts")[0] == 0
    assert (repo / "manifest.yaml").read_bytes() == before
    assert verb(toy, repo, "check")[0] == 0

    (repo / "manifest.yaml").write_bytes(before + b"# edited\n")
    code, out = verb(toy, repo, "check")
    assert (code, "manifest.yaml" in out, "README.md" in out) == (1, True, False), out
    (repo / "manifest.yaml").write_bytes(before)

    table = repo / "packs/README.md"
    assert "| validated | 1.0 | – | REPRODUCED_AND_FIXED | none | – | – | [2" in table.read_text()
    table.write_text("edited")
    code, out = verb(toy, repo, "check")
    assert (code, "packs/README.md" in out, "manifest.yaml" in out) == (1, True, False), out
    verb(toy, repo, "refresh")

    reproducer = repo / "packs/07_toy/reproducer.py"
    reproducer.write_text(reproducer.read_text() + "\n# changed\n")
    assert verb(toy, repo, "check")[0] == 1
    before = kept(repo)
    code, out = verb(toy, repo, "refresh")
    assert (code, kept(repo)) == (1, before), out
    assert "validated -> stale" in out and "refresh --accept" in out
    assert verb(toy, repo, "refresh", "--accept")[0] == 0
    assert entry(repo)["state"] == "stale"
    assert entry(repo)["lanes"]["cpu"]["changed_since"] == ["reproducer.py"]


def test_changed_patch_is_stale(toy, repo):
    import_receipts([toy.receipt], repo / "receipts")
    (repo / "packs/07_toy/fix.patch").write_text(toy.patch(edited(TOTAL)))
    stale = build(load_packs(repo / "packs"), repo / "receipts")["pack07"]
    assert (stale.state, stale.lanes["cpu"].changed_since) == ("stale", ["fix.patch"])


def test_check_fails_after_an_edit_of_a_receipt(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    log = next((repo / "receipts/07").glob("*.log"))
    log.write_text("edited\n")
    code, out = verb(toy, repo, "check")
    assert (code, f"{log.parent.name}/{log.stem}.json" in out) == (1, True), out


def test_tampered_receipts_are_not_imported(toy, repo):
    toy.receipt.write_text(toy.receipt.read_text().replace('"toy"', '"joy"'))
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert (code, toy.receipt.name in out) == (2, True), out
    assert not (repo / "receipts").exists()
    assert not (repo / "manifest.yaml").exists()


def test_a_source_and_no_import_contradict_each_other(toy, repo):
    assert verb(toy, repo, "refresh", "build/receipts", "--no-import")[0] == 2
    assert not (repo / "manifest.yaml").exists()


def test_source_must_be_a_folder(toy, repo):
    code, out = verb(toy, repo, "refresh", "nowhere")
    assert (code, "nowhere" in out) == (2, True)


def test_a_run_that_could_not_test_demotes_nothing_and_stays_where_it_is(toy, repo):
    lost = again(toy, repo, {"other/__init__.py": ""})
    later = again(toy, repo, minutes=2)
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert (code, entry(repo)["state"]) == (0, "validated"), out
    assert "not imported: 1" in out
    assert not (repo / "receipts/07" / lost.name).exists()
    assert entry(repo)["lanes"]["cpu"]["receipt"].endswith(later.name)
    assert verb(toy, repo, "check")[0] == 0, "the chain is whole without it"


def test_what_an_earlier_version_imported_displaces_no_verdict(toy, repo):
    import_receipts([toy.receipt, again(toy, repo, {"other/__init__.py": ""})], repo / "receipts")
    pack = build(load_packs(repo / "packs"), repo / "receipts")["pack07"]
    assert (pack.state, pack.tried) == ("validated", {"1.0": "REPRODUCED_AND_FIXED"})


def test_the_predecessor_of_a_receipt_comes_along(toy, repo):
    """An earlier version chained what could not test; without it the chain would be broken."""
    lost, later = again(toy, repo, {"other/__init__.py": ""}), again(toy, repo, minutes=2)
    everywhere(later, previous=hashlib.sha256(lost.read_bytes()).hexdigest())
    assert verb(toy, repo, "refresh", "build/receipts")[0] == 0
    assert (repo / "receipts/07" / lost.name).exists()
    assert (verb(toy, repo, "check")[0], entry(repo)["state"]) == (0, "validated")


def test_a_demotion_needs_a_yes(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    before = kept(repo)
    (repo / "packs/07_toy/fix.patch").write_text(toy.patch(edited(TOTAL)))
    worse = again(toy, repo)
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert (code, kept(repo)) == (1, before), out
    rows = [line for line in out.splitlines() if line.startswith("demotion: ")]
    assert [row.partition(": ")[2] for row in rows] == [
        "pack07: validated -> draft",
        "pack07 cpu: REPRODUCED_AND_FIXED -> FIX_INEFFECTIVE",
        "pack07 at 1.0: REPRODUCED_AND_FIXED -> FIX_INEFFECTIVE",
    ]
    assert verb(toy, repo, "refresh", "build/receipts", "--accept")[0] == 0
    assert (repo / "receipts/07" / worse.name).exists()
    assert entry(repo)["state"] == "draft"


def entries(state="validated", verdict="REPRODUCED_AND_FIXED", **tried):
    return {"pack07": made.entry(state, {"cpu": made.lane(verdict)} if verdict else {}, **tried)}


@pytest.mark.parametrize(
    ("after", "count"),
    [
        (entries(), 0),
        (entries("stale"), 1),
        (entries("fixed-upstream(candidate)", "FIXED_UPSTREAM"), 2),
        (entries("reproduced", "REPRODUCED"), 2),
        (entries("reproduced", None), 2),
        (entries("held(why)"), 0),
        (entries("filed"), 0),
        ({}, 2),
    ],
)
def test_what_is_worse(after, count):
    assert len(demotions(entries(), after)) == count


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ("REPRODUCED", "REPRODUCED_AND_FIXED", 0),
        ("REPRODUCED", "FIXED_UPSTREAM", 1),
        ("REPRODUCED", "PATCH_STALE", 1),
        ("FIXED_UPSTREAM", "REPRODUCED", 1),
        ("FIXED_UPSTREAM", "nothing", 1),
        ("PATCH_STALE", "REPRODUCED", 0),
    ],
)
def test_what_a_release_no_longer_shows_is_worse(before, after, count):
    new = entries(v1=after) if after != "nothing" else entries()
    assert len(demotions(entries(v1=before), new)) == count


def test_a_damaged_manifest_is_made_anew_only_if_what_it_named_may_be_forgotten(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    before = kept(repo)
    (repo / "manifest.yaml").write_text("<<<<<<< ours\n")
    for asked in ("check", "refresh"):
        code, out = verb(toy, repo, asked)
        assert code in (1, 2) and "git checkout HEAD -- manifest.yaml" in out
    assert (repo / "manifest.yaml").read_text() == "<<<<<<< ours\n"
    assert verb(toy, repo, "refresh", "--accept")[0] == 0
    assert kept(repo) == before


def test_a_generated_page_in_another_encoding_is_written_anew(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    before = kept(repo)
    with (repo / "packs/README.md").open("ab") as page:
        page.write(b"\xff")
    code, out = verb(toy, repo, "check")
    assert (code, "packs/README.md is not current" in out) == (1, True), out
    assert verb(toy, repo, "refresh")[0] == 0
    assert kept(repo) == before


def relabelled(run):
    run.tree = dataclasses.replace(run.tree, origin=Origin(kind="commit", sha="c" * 40))


def another_tree(run):
    run.tree = dataclasses.replace(run.tree, digest="e" * 64)


def another_release(run):
    run.request = dataclasses.replace(run.request, at="2.0")


@pytest.mark.parametrize("change", [relabelled, another_tree, another_release])
def test_a_receipt_of_another_tree_than_its_pin_is_refused(toy, repo, change):
    bad = again(toy, repo, change=change)
    before = kept(repo)
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert (code, bad.name in out, kept(repo)) == (2, True, before), out


def test_a_folder_or_a_commit_is_never_the_live_pin(toy, repo):
    """A run on other code changes neither the live lane nor the listed releases."""
    verb(toy, repo, "refresh", "build/receipts")
    lane = entry(repo)["lanes"]
    healthy = edited(TOTAL, FIRST)
    folder = again(toy, repo, healthy, upstream=toy.upstream)
    clone = write_tree(toy.root / "clone", healthy)
    git("init", "-q", cwd=clone)
    git("add", "-A", cwd=clone)
    git("commit", "-qm", "one", cwd=clone)
    sha = git("rev-parse", "HEAD", cwd=clone).strip()
    again(toy, repo, healthy, minutes=2, upstream=clone)
    code, out = verb(toy, repo, "refresh", "build/receipts")
    assert code == 0, out
    assert not (repo / "receipts/07" / folder.name).exists()
    assert entry(repo)["tried"] == {"1.0": "REPRODUCED_AND_FIXED", sha: "FIXED_UPSTREAM"}
    assert (entry(repo)["state"], entry(repo)["lanes"]) == ("validated", lane)


def test_another_pin_makes_a_receipt_stale(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    record = repo / "packs/07_toy/pack.yaml"
    record.write_text(record.read_text().replace('release: "1.0"', 'release: "9.9.9"'))
    write_tree(repo, {"packs/releases.yaml": PUBLISHED.replace('"1.0"', '"9.9.9"')})
    code, out = verb(toy, repo, "refresh")
    assert (code, "pins.live" in out) == (1, True), out
    verb(toy, repo, "refresh", "--accept")
    assert (entry(repo)["state"], entry(repo)["lanes"]["cpu"]["changed_since"]) == ("stale", ["pins.live"])


def test_a_lost_receipt_is_named_and_forgotten_only_when_asked(toy, repo):
    later = again(toy, repo)
    verb(toy, repo, "refresh", "build/receipts")
    gone = repo / "receipts/07" / later.name
    gone.unlink()
    gone.with_suffix(".log").unlink()
    before = kept(repo)
    for args, code in ((["check"], 1), (["refresh", "--no-import"], 2)):
        ended, out = verb(toy, repo, *args)
        assert (ended, gone.stem in out, kept(repo)) == (code, True, before), out
        assert "git checkout HEAD -- receipts/07" in out
    assert verb(toy, repo, "refresh")[0] == 0, "build/receipts still has it"
    assert gone.is_file()
    shutil.rmtree(repo / "receipts/07")
    assert verb(toy, repo, "check")[0] == 1
    assert verb(toy, repo, "refresh", "--no-import", "--accept")[0] == 0
    assert verb(toy, repo, "check")[0] == 0


def test_an_import_that_was_broken_off_is_ended_by_the_next(toy, repo):
    (repo / "receipts/07").mkdir(parents=True)
    shutil.copy(toy.receipt.with_suffix(".log"), repo / "receipts/07")
    left = [repo / ".tmp-1", repo / "packs/.tmp-1", repo / "receipts/07/.tmp-x.json"]
    for path in left:
        path.write_text("x")
    assert verb(toy, repo, "refresh", "build/receipts")[0] == 0
    assert [path for path in left if path.exists()] == []
    assert verb(toy, repo, "check")[0] == 0


def test_a_tampered_receipt_stops_refresh_by_name(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    receipt = repo / "receipts/07" / toy.receipt.name
    receipt.write_bytes(receipt.read_bytes()[:100])
    for args, code in ((["check"], 1), (["refresh", "--accept"], 2)):
        ended, out = verb(toy, repo, *args)
        assert (ended, f"{receipt.name}: " in out and "git checkout HEAD -- receipts/07" in out) == (code, True), out


def test_another_engine_is_told_and_nothing_is_stale(toy, repo):
    verb(toy, repo, "refresh", "build/receipts")
    assert "another engine" not in verb(toy, repo, "check")[1]
    module = next((repo / "reproducers").rglob("keeper.py"))
    module.write_text(module.read_text() + "\n# changed\n")
    code, out = verb(toy, repo, "check")
    assert (code, toy.receipt.name in out, "1 of 1" in out) == (0, False, True), out
    code, out = verb(toy, repo, "check", "-v")
    assert (code, toy.receipt.name in out) == (0, True), out
    assert (verb(toy, repo, "refresh")[0], entry(repo)["state"]) == (0, "validated")


@pytest.mark.long
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


@pytest.mark.parametrize("name", sampled(["docs/stacks.md", "model/patches.dev.lock", "docs/benchmarks.md"], 3))
def test_a_generated_file_that_was_changed_is_named(toy, repo, name):
    write_tree(
        repo,
        {name: "123 tokens/s\n", "packs/fingerprints.json": '{"schema_version": 2, "date": "2026-11-30", "packs": {}}'},
    )
    assert verb(toy, repo, "refresh", "--no-import")[0] == 0 and verb(toy, repo, "check")[0] == 0
    (repo / name).write_text("124 tokens/s\n")
    code, out = verb(toy, repo, "check")
    assert (code, name in out, "manifest.yaml is" in out) == (1, True, False), out
    (repo / name).unlink()
    code, out = verb(toy, repo, "check")
    assert (code, name in out, "1 fault" in out) == (1, True, True), out


def test_a_generated_file_that_the_manifest_does_not_name_is_named(toy, repo):
    assert verb(toy, repo, "refresh", "--no-import")[0] == 0
    write_tree(repo, {"model/patches.other.lock": ""})
    code, out = verb(toy, repo, "check")
    assert (code, "model/patches.other.lock" in out) == (1, True), out
