"""pack.yaml: what is accepted, and how a bad one is explained."""

import json
import os
from pathlib import Path

import pytest
from toy import PUBLISHED, RECORD, THREAD, write_tree

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from reproducers.record.schema import (
    load_each,
    load_named,
    load_needs,
    load_pack,
    load_packs,
    load_releases,
    read_yaml,
    select,
    text_of,
)


def refusal(toy, record):
    with pytest.raises(PatchlaneError) as caught:
        toy.pack(record=record, patch="x")
    assert caught.value.exit_code is Exit.USAGE
    return caught.value


def faults_of(error):
    """[(field, pydantic's type)] of the faults behind an error."""
    return [(".".join(map(str, fault["loc"])), fault["type"]) for fault in error.__cause__.errors()]


def line_of(record, start):
    return next(n for n, line in enumerate(record.splitlines(), 1) if line.strip().startswith(start))


def test_good(toy):
    pack = toy.pack()
    assert (pack.id, pack.number, str(pack.pins["live"].origin)) == ("pack07", 7, "1.0")
    assert load_packs(toy.packs) == [pack]


def listed(thread):
    """The replacement that gives the toy's record this thread."""
    return "upstream_state:\n", f"upstream_state:\n  threads:\n    - {json.dumps(thread)}\n"


def without(field):
    return {key: value for key, value in THREAD.items() if key != field}


E_1 = "{e-1.tar.gz: " + "c" * 64 + "}"
OWN, PATTERN = "value_error", "string_pattern_mismatch"  # a validator of ours raised, a pattern did not match
THREAD_0 = "upstream_state.threads.0"
# name: the replacement, then the field and pydantic's type of the fault, then what else the message names
FAULTS = {
    "title is missing": (("title: total forgets the first value\n", ""), "title", "missing"),
    "unknown key": (("kind: bug", "kind: bug\nkindd: bug"), "kindd", "extra_forbidden"),
    "unknown nested key": (("    timeout_s: 30", "    timeout: 30"), "lanes.cpu.timeout", "extra_forbidden"),
    "category": (("category: memory", "category: other"), "category", "literal_error"),
    "kind": (("kind: bug", "kind: typo"), "kind", "literal_error"),
    "harm": (("harm: wrong numbers", "harm: bad"), "harm", "literal_error"),
    "harm is missing": (("harm: wrong numbers\n", ""), "", OWN, "harm and effect"),
    "effect is missing": (("effect: Every total lacks its first value\n", ""), "", OWN, "harm and effect"),
    "effect of more than a line": (("effect: Every", f"effect: {'x' * 110} Every"), "effect", "string_too_long"),
    "harm of a refactor": (("kind: bug", "kind: refactor"), "", OWN, "harm, effect"),
    "repo": (("repo: toy/toyup", "repo: toyup"), "upstream.repo", PATTERN),
    "sha": (('release: "1.0"', "sha: " + "a" * 39), "pins.live.sha", PATTERN),
    "release that is a number": (('release: "1.0"', "release: 1.0"), "pins.live.release", "string_type"),
    "pin without a name": (('    release: "1.0"', "    source: x"), "pins.live", OWN, "40-hex sha"),
    "no live pin": (("  live:", "  fixed:"), "", OWN, "pins.live"),
    "pin named as a folder": (("lanes:\n", f"  upstream: {{sha: {'a' * 40}}}\nlanes:\n"), "", OWN, '"upstream"'),
    "pin name": (("  live:", "  Live-1:"), "pins.Live-1.[key]", PATTERN),
    "lane unexplained": (("no_lane:\n  cuda: a toy\n", ""), "", OWN, "no_lane"),
    "number": (("number: 7", "number: 8"), "", OWN, "number 8", "07_toy"),
    "number range": (("number: 7", "number: 0"), "number", "greater_than_equal"),
    "guard without fixed": (("kind: bug", "kind: guard"), "", OWN, "fixed pin"),
    "report with a patch": (("kind: bug", "kind: report"), "", OWN, "kind report", "07_toy/fix.patch"),
    "threads promised": (("found: none", "found: threads"), "upstream_state", OWN, "search.found"),
    "filed without URL": (("upstream_state:\n", "upstream_state:\n  filed: pr\n"), "upstream_state", OWN, "filed_url"),
    "filing of no pin": (("decision: none", "decision: none\n  pin: main"), "", OWN, "filing.pin: 'main'"),
    "thread of another repository": (
        ("decision: none", "decision: none\n  thread: https://github.com/toy/other/issues/3"),
        "",
        OWN,
        "filing.thread: https://github.com/toy/other/issues/3",
        "toy/toyup",
    ),
    "threads denied": (listed(THREAD), "upstream_state", OWN, "search.found"),
    "thread elsewhere": (listed(THREAD | {"url": "http://x"}), f"{THREAD_0}.url", PATTERN),
    "thread of a branch": (
        listed(THREAD | {"url": "https://github.com/toy/toyup/tree/main"}),
        f"{THREAD_0}.url",
        PATTERN,
    ),
    "thread without a title": (listed(without("title")), f"{THREAD_0}.title", "missing"),
    "thread with an empty title": (listed(THREAD | {"title": " "}), f"{THREAD_0}.title", "string_too_short"),
    "thread without a relation": (listed(without("relation")), f"{THREAD_0}.relation", "missing"),
    "relation": (listed(THREAD | {"relation": "related"}), f"{THREAD_0}.relation", "literal_error"),
    "thread state": (listed(THREAD | {"state": "draft"}), f"{THREAD_0}.state", "literal_error"),
    "thread never looked up": (
        listed(THREAD | {"looked_up": ""}),
        f"{THREAD_0}.looked_up",
        "date_from_datetime_parsing",
    ),
    "date": (("date: 2026-11-21", "date: soon"), "upstream_state.search.date", "date_from_datetime_parsing"),
    "untrained of no patch": (("kind: bug", "kind: bug\nuntrained: {gone.patch: {x: y}}"), "", OWN, "gone.patch"),
    "schema version": (("schema_version: 1", "schema_version: 2"), "schema_version", "literal_error"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(toy, name):
    (old, new), field, kind, *words = FAULTS[name]
    assert old in RECORD
    fault = refusal(toy, RECORD.replace(old, new, 1))
    assert faults_of(fault) == [(field, kind)]
    assert f": {field or '(whole file)'}: " in fault.what
    assert [word for word in words if word not in fault.what] == []


def test_the_line_is_named(toy):
    record = RECORD.replace("    timeout_s: 30", "    timeout_s: soon")
    assert f"07_toy/pack.yaml:{line_of(record, 'timeout_s')}: lanes.cpu.timeout_s: " in refusal(toy, record).what


def test_every_fault_is_named_at_once(toy):
    fault = refusal(toy, RECORD.replace("kind: bug", "kind: typo").replace("category: memory", "category: other"))
    assert fault.what.count("pack.yaml:") == 2
    assert {field for field, _ in faults_of(fault)} == {"kind", "category"}


def test_missing_files(toy):
    toy.pack("x")
    (toy.folder / "fix.patch").unlink()
    with pytest.raises(PatchlaneError, match=r"kind bug .*07_toy/fix\.patch"):
        load_pack(toy.folder)
    (toy.folder / "fix.patch").write_text("x")
    (toy.folder / "reproducer.py").unlink()
    with pytest.raises(PatchlaneError, match=r"07_toy/reproducer\.py"):
        load_pack(toy.folder)


def test_not_yaml(toy):
    assert "pack.yaml:3: " in refusal(toy, "number: 7\ntitle: [\n").what
    assert "pack.yaml:1: " in refusal(toy, "- a list\n").what


def test_number_used_twice(toy):
    toy.pack()
    toy.pack(folder="07_other")
    with pytest.raises(PatchlaneError, match=r"number 7 .*07_other .*07_toy"):
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
    with pytest.raises(PatchlaneError, match=r"number 7 .*07_other .*07_toy"):
        load_named(["7"], toy.packs)


def test_needs(toy):
    record = RECORD.replace("lanes:\n", "    needs: [extra]\nlanes:\n", 1)
    fault = refusal(toy, record)
    assert f"pack.yaml:{line_of(record, 'needs')}: pins.live.needs: 'extra' " in fault.what
    assert "needs.yaml" in fault.what
    good = "extra:\n- distribution: extra\n  release: '1'\n"
    listed = PUBLISHED + f"extra: {{'1': {{artifacts: {E_1}}}}}\n"
    toy.publishes(listed, good)
    assert toy.pack(record=record).pins["live"].needs == ["extra"]
    toy.publishes(listed, good.replace("release", "releas"))
    fault = refusal(toy, record)
    assert "needs.yaml:3: extra.0.releas: " in fault.what
    assert faults_of(fault) == [
        ("extra.0.release", "missing"),
        ("extra.0.artifacts", "missing"),
        ("extra.0.releas", "extra_forbidden"),
    ]


PLACE = "07_toy/pack.yaml:16: pins.live."
COMMAND = "python -m reproducers.release toyup "


@pytest.mark.parametrize(
    ("pin", "what", "command"),
    [
        ('"1.7"', f"{PLACE}release: releases.yaml has no toyup 1.7", f"{COMMAND}1.7"),
        (f'"1.0"\n    sha: {"a" * 40}', "07_toy/pack.yaml:17: pins.live.sha: ", f"{COMMAND}1.0"),
        (f'"1.0"\n    artifacts: {{x.whl: {"b" * 64}}}', "07_toy/pack.yaml:17: pins.live.artifacts: ", f"{COMMAND}1.0"),
    ],
)
def test_a_release_is_known_by_its_name_alone(toy, pin, what, command):
    fault = refusal(toy, RECORD.replace('"1.0"', pin))
    assert what in fault.what and command in fault.remedy


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "kind"),
    [
        ("sha:", "shaa:", 3, "toyup.1.0.shaa", "extra_forbidden"),
        ("a" * 40, "a" * 39, 3, "toyup.1.0.sha", PATTERN),
        ("b" * 64, "b" * 63, 5, "toyup.1.0.artifacts.toyup-1.0-py3-none-any.whl", PATTERN),
        ("toyup-1.0-py3", "../toyup-1.0-py3", 5, "toyup.1.0.artifacts.../toyup-1.0-py3-none-any.whl.[key]", OWN),
    ],
)
def test_a_fault_of_releases_is_named_by_file_and_line(toy, old, new, line, field, kind):
    toy.publishes(PUBLISHED.replace(old, new))
    fault = refusal(toy, RECORD)
    assert f"packs/releases.yaml:{line}: {field}: " in fault.what and faults_of(fault) == [(field, kind)]


def test_a_need_takes_the_files_that_only_names(toy):
    files = f"{{a-1-cp311.whl: {'a' * 64}, a-1-cp312.whl: {'b' * 64}}}"
    published = f"a:\n  '1': {{sha: {'c' * 40}, artifacts: {files}}}\n"
    for only, names in (("", ["a-1-cp311.whl", "a-1-cp312.whl"]), (", only: cp312", ["a-1-cp312.whl"])):
        toy.publishes(published, f"x:\n- {{distribution: a, release: '1'{only}}}\n")
        (need,) = load_needs(toy.packs)["x"]
        assert list(need.artifacts) == names
    toy.publishes(published, "x:\n- distribution: a\n  release: '1'\n  only: cp313\n")
    with pytest.raises(PatchlaneError, match=r"needs\.yaml:4: x\.0\.only: "):
        load_needs(toy.packs)


def test_select(toy):
    packs = [toy.pack()]
    for name in ("pack07", "07", "7", "pack7"):
        assert select([name], packs) == packs
    for name in ("8", "pack", "x", "", "-7"):
        with pytest.raises(PatchlaneError) as caught:
            select([name], packs)
        assert caught.value.remedy == "python -m reproducers.run --list" and repr(name) in caught.value.what


def test_a_date_that_there_is_not(tmp_path):
    (tmp_path / "x.yaml").write_text("date: 2026-13-45\n")
    with pytest.raises(PatchlaneError, match=r"x\.yaml: month"):
        read_yaml(tmp_path / "x.yaml")


def test_text_that_is_no_utf8_is_named(tmp_path):
    (tmp_path / "x.md").write_bytes("ä".encode("latin-1"))
    with pytest.raises(PatchlaneError, match=r"x\.md: not UTF-8 at byte 0"):
        text_of(tmp_path / "x.md")


@pytest.mark.parametrize("text", ["[" * 300, "[" * 5000, "a: {b: " * 201, "- " * 3000, "{a: [" * 101 + "]}" * 101])
def test_so_many_levels_are_refused_by_file_and_line(tmp_path, text):
    (tmp_path / "pack.yaml").write_text(f"x: 1\ny: {text}\n" if text[0] in "[{" else text)
    for read in (read_yaml, lambda path: load_pack(path.parent)):
        with pytest.raises(PatchlaneError, match=r"pack\.yaml:\d+: "):
            read(tmp_path / "pack.yaml")


def test_a_merge_that_would_hide_a_key_is_refused(tmp_path):
    for text in ("a: &x {k: 1}\nb:\n  <<: *x\n  k: 2\n", "<<: {k: 1}\nk: 2\n"):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(PatchlaneError, match=r"x\.yaml:[13]: <<"):
            read_yaml(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text('"<<": 1\n')  # a plain text
    assert read_yaml(tmp_path / "x.yaml")[1] == {"<<": 1}


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["pack.yaml", "needs.yaml", "releases.yaml"])
def test_what_is_no_file_is_refused_at_once(toy, name, make):
    folder = toy.pack().folder
    path = folder / name if name == "pack.yaml" else folder.parent / name
    path.unlink(missing_ok=True)
    make(path)
    load_needs.cache_clear()
    load_releases.cache_clear()
    with pytest.raises(PatchlaneError, match=name):
        load_pack(folder)
