"""pack.yaml: what is accepted, and how a bad one is explained."""

import json

import pytest
from toy import RECORD, THREAD, write_tree

from reproducers.base.errors import PatchlaneError
from reproducers.base.verdicts import Exit
from reproducers.record.schema import ROOT, load_each, load_named, load_needs, load_pack, load_packs, select


def refusal(toy, record, **more):
    with pytest.raises(PatchlaneError) as caught:
        toy.pack(record=record, patch=more.pop("patch", "x"), **more)
    assert caught.value.exit_code is Exit.USAGE
    return str(caught.value)


def line_of(record, start):
    return next(n for n, line in enumerate(record.splitlines(), 1) if line.strip().startswith(start))


def test_good(toy):
    pack = toy.pack()
    assert (pack.id, pack.number, str(pack.pins["live"].origin)) == ("pack07", 7, "1.0")
    assert load_packs(toy.packs) == [pack]


def listed(thread):
    """The replacement that gives the toy's record this thread."""
    return "upstream_state:\n", f"upstream_state:\n  threads:\n    - {json.dumps(thread)}\n"


LIVE = "pins:\n  live:\n"
WHERE = "upstream_state.threads.0."
FAULTS = {
    "title is missing": (("title: total forgets the first value\n", ""), "title: Field required"),
    "unknown key": (("kind: bug", "kind: bug\nkindd: bug"), "kindd: Extra inputs"),
    "unknown nested key": (("    timeout_s: 30", "    timeout: 30"), "lanes.cpu.timeout: Extra inputs"),
    "category": (("category: memory", "category: other"), "category: Input should be"),
    "kind": (("kind: bug", "kind: typo"), "kind: Input should be"),
    "repo": (("repo: toy/toyup", "repo: toyup"), "upstream.repo: String should match"),
    "sha": (("a" * 40, "a" * 39), "pins.live.sha: String should match"),
    "digest": (("b" * 64, "b" * 63), "pins.live.artifacts.toyup-1.0-py3-none-any.whl: String should match"),
    "pin without a name": (
        ('    release: "1.0"\n    sha: ' + "a" * 40, "    source: x"),
        "pins.live: a pin needs a release or",
    ),
    "release without artefacts": (
        ("    artifacts:\n      toyup-1.0-py3-none-any.whl: " + "b" * 64, "    artifacts: {}"),
        "pins.live: a release pin needs artifacts",
    ),
    "no live pin": (("  live:", "  fixed:"), "pins.live is required"),
    "pin named as a folder": (("lanes:\n", f"  upstream: {{sha: {'a' * 40}}}\nlanes:\n"), "no pin may be named"),
    "pin name": (("  live:", "  Live-1:"), "pins.Live-1"),
    "lane unexplained": (("no_lane:\n  cuda: a toy\n", ""), "lane cuda is absent: say why under no_lane"),
    "number": (("number: 7", "number: 8"), "number 8 does not match its folder 07_toy"),
    "number range": (("number: 7", "number: 0"), "number: Input should be greater"),
    "guard without fixed": (("kind: bug", "kind: guard"), "a guard needs a fixed pin"),
    "report with a patch": (("kind: bug", "kind: report"), "offers no fix, yet"),
    "threads promised": (("found: none", "found: threads"), "upstream_state: search.found must be"),
    "filed without URL": (
        ("upstream_state:\n", "upstream_state:\n  filed: pr\n"),
        "filed, filed_url and filed_on go together",
    ),
    "filing of no pin": (
        ("decision: none", "decision: none\n  pin: main"),
        "filing.pin: 'main' is no pin with the bug",
    ),
    "thread of another repository": (
        ("decision: none", "decision: none\n  thread: https://github.com/toy/other/issues/3"),
        "filing.thread: https://github.com/toy/other/issues/3 is not of toy/toyup",
    ),
    "threads denied": (listed(THREAD), "upstream_state: search.found must be 'threads' exactly when"),
    "thread elsewhere": (listed(THREAD | {"url": "http://x"}), WHERE + "url: String should match"),
    "thread of a branch": (
        listed(THREAD | {"url": "https://github.com/toy/toyup/tree/main"}),
        WHERE + "url: String should match",
    ),
    "thread without a title": (
        listed({key: value for key, value in THREAD.items() if key != "title"}),
        WHERE + "title: Field required",
    ),
    "thread with an empty title": (listed(THREAD | {"title": " "}), WHERE + "title: String should have at least 1"),
    "thread without a relation": (
        listed({key: value for key, value in THREAD.items() if key != "relation"}),
        WHERE + "relation: Field required",
    ),
    "relation": (listed(THREAD | {"relation": "related"}), WHERE + "relation: Input should be 'reports it', "),
    "thread state": (listed(THREAD | {"state": "draft"}), WHERE + "state: Input should be 'open', "),
    "thread never looked up": (listed(THREAD | {"looked_up": ""}), WHERE + "looked_up: Input should be a valid date"),
    "date": (("date: 2026-11-21", "date: soon"), "upstream_state.search.date: "),
    "consumed by": (
        ("kind: bug", 'kind: bug\nconsumed_by: ["gpu model.head"]'),
        "consumed_by.0: 'gpu model.head' is not \"LANE",
    ),
    "consumed outside": (("kind: bug", 'kind: bug\nconsumed_by: ["cuda tests.x"]'), "'cuda tests.x' is not"),
    "consumed for nothing": (
        ("kind: bug", 'kind: bug\nconsumed_by: ["cuda model.head: "]'),
        "'cuda model.head: ' is not",
    ),
    "schema version": (("schema_version: 1", "schema_version: 2"), "schema_version: Input should be 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(toy, name):
    (old, new), said = FAULTS[name]
    assert old in RECORD
    assert said in refusal(toy, RECORD.replace(old, new, 1))


def test_consumed_by(toy):
    entries = ["cpu model.layers.spec", "cuda model.layers.mamba3.mixer: its backward, 8 groups"]
    assert toy.pack(record=RECORD + f"consumed_by: {entries}\n").consumed_by == entries
    report = RECORD.replace("kind: bug", "kind: report") + f"consumed_by: {entries}\n"
    toy.pack("x")
    (toy.folder / "fix.patch").unlink()
    (toy.folder / "pack.yaml").write_text(report)
    with pytest.raises(PatchlaneError, match=r"consumed_by is for packs whose fix.patch is trained with"):
        load_pack(toy.folder)


def test_every_consumer_is_a_module_of_the_model():
    for pack in load_packs():
        for entry in pack.consumed_by:
            module = entry.split(":")[0].split()[1]
            assert ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file(), f"{pack.id}: {entry}"


def test_the_line_is_named(toy):
    record = RECORD.replace("    timeout_s: 30", "    timeout_s: soon")
    place = f"07_toy/pack.yaml:{line_of(record, 'timeout_s')}: lanes.cpu.timeout_s: Input should be a valid integer"
    assert place in refusal(toy, record)


def test_every_fault_is_named_at_once(toy):
    said = refusal(toy, RECORD.replace("kind: bug", "kind: typo").replace("category: memory", "category: other"))
    assert said.count("pack.yaml:") == 2


def test_missing_files(toy):
    toy.pack("x")
    (toy.folder / "fix.patch").unlink()
    with pytest.raises(PatchlaneError, match=r"kind bug needs 07_toy/fix.patch"):
        load_pack(toy.folder)
    (toy.folder / "fix.patch").write_text("x")
    (toy.folder / "reproducer.py").unlink()
    with pytest.raises(PatchlaneError, match=r"07_toy/reproducer.py is missing"):
        load_pack(toy.folder)


def test_not_yaml(toy):
    assert "pack.yaml:3: " in refusal(toy, "number: 7\ntitle: [\n")
    assert "expected a mapping" in refusal(toy, "- a list\n")


def test_number_used_twice(toy):
    toy.pack()
    toy.pack(folder="07_other")
    with pytest.raises(PatchlaneError, match=r"number 7 is used by .*07_other and .*07_toy"):
        load_packs(toy.packs)


def test_one_bad_pack_does_not_hide_the_others(toy):
    good = toy.pack()
    write_tree(toy.packs, {"08_bad/pack.yaml": RECORD.replace("kind: bug", "kind: typo"), "09_gone/reproducer.py": ""})
    (toy.packs / "10_left" / "__pycache__").mkdir(parents=True)
    packs, faults = load_each(toy.packs)
    assert packs == [good] and load_named(["pack07", "7"], toy.packs) == [good, good]
    assert [("08_bad" in fault.what, "09_gone" in fault.what) for fault in faults] == [(True, False), (False, True)]
    with pytest.raises(PatchlaneError, match=r"08_bad(.|\n)*09_gone"):
        load_packs(toy.packs)
    for name in ("8", "9", "10", "11", "x", ""):
        with pytest.raises(PatchlaneError) as caught:
            load_named([name], toy.packs)
        assert caught.value.exit_code is Exit.USAGE and caught.value.remedy


def test_a_number_used_twice_is_refused_by_name_too(toy):
    toy.pack()
    toy.pack(folder="07_other")
    with pytest.raises(PatchlaneError, match=r"number 7 is used by .*07_other and .*07_toy"):
        load_named(["7"], toy.packs)


def test_needs(toy):
    record = RECORD.replace("lanes:\n", "    needs: [extra]\nlanes:\n", 1)
    said = refusal(toy, record)
    assert f"pack.yaml:{line_of(record, 'needs')}: pins.live.needs: 'extra' is not in needs.yaml" in said
    load_needs.cache_clear()
    good = f"extra:\n- distribution: extra\n  release: '1'\n  artifacts:\n    e-1.tar.gz: {'c' * 64}\n"
    (toy.packs / "needs.yaml").write_text(good)
    assert toy.pack(record=record).pins["live"].needs == ["extra"]
    load_needs.cache_clear()
    (toy.packs / "needs.yaml").write_text(good.replace("release", "releas"))
    assert "needs.yaml:3: extra.0.releas: Extra inputs" in refusal(toy, record)


def test_select(toy):
    packs = [toy.pack()]
    for name in ("pack07", "07", "7", "pack7"):
        assert select([name], packs) == packs
    for name in ("8", "pack", "x", "", "-7"):
        with pytest.raises(PatchlaneError, match="no pack"):
            select([name], packs)
