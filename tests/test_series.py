"""Which patches make a series, in which order, tried with git am; and the verb that writes it."""

import dataclasses
import datetime
import re
import shutil
import subprocess
import sys
from itertools import count

import made
import pytest
import toy as toys
import yaml
from toy import FIRST, RECORD, REPRODUCER, SOURCE, TOTAL, edited
from typer.testing import CliRunner

import reproducers.series as command
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import file_sha256, record_bytes
from reproducers.carried import entry, importing
from reproducers.carried.patches import mails
from reproducers.desk.patches import series, short_header
from reproducers.desk.patches.header import mail
from reproducers.desk.patches.order import Member, choose, order
from reproducers.desk.patches.trees import tree_of
from reproducers.desk.patches.tried import git, verify
from reproducers.evidence import manifest
from reproducers.evidence.receipts import write
from reproducers.record.origin import Origin
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream import merging, patching, pins
from reproducers.upstream.store import Store

PACKS = {pack.number: pack for pack in load_packs()}
ENTRIES = manifest.build(list(PACKS.values()), ROOT / "receipts")
CLIENTS = ("requests", "urllib3", "httpx", "aiohttp", "http.client", "urllib.request", "pypi_simple", "truststore")
MEAN = ('"""The mean."""', '"""The mean of all."""')
SCALE = ("value * factor for", "factor * value for")
KEY = "b" * 64  # the artefact's digest in the toy's record: the store's key of its tree


@pytest.fixture
def desk(toy, monkeypatch, believed):
    """``desk(number, *edits)`` writes a toy pack with that patch and a receipt of it, for the verb to find."""
    monkeypatch.setattr(series, "ROOT", toy.root)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.store.root))
    tree = toy.store.root / "trees" / KEY
    for name, text in SOURCE.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree.parent / f"{KEY}.json").write_text("{}")
    minutes = count()

    def make(number, *edits, after=(), receipt=True, reproducer=REPRODUCER, **changed):
        values = yaml.safe_load(RECORD) | {"number": number} | changed
        values["filing"] = {"decision": "pr", "reason": "a toy", "after": list(after)} | changed.get("filing", {})
        short = f"Subject: change {number}\nOrigin: written for patchlane\n\n"
        text = reproducer.replace("pack=7", f"pack={number}")
        patch = short + toy.patch(edited(*edits))
        pack = toy.pack(patch, text, yaml.safe_dump(values), f"{number:02d}_toy")
        if receipt:
            keep(toy, pack, next(minutes))
        return pack

    return make


def keep(toy, pack, minute):
    """A receipt that says what a run of both arms would, in the parts that a series reads."""
    started = datetime.datetime(2026, 11, 20, 8, minute, tzinfo=datetime.UTC)
    details = made.details(
        pin={"release": "1.0", "artifacts": pack.pins["live"].artifacts},
        verdict="REPRODUCED_AND_FIXED",
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        log_sha256="e" * 64,
    )
    tree = Origin(kind="release", distribution="toyup", release="1.0")
    patch, reproducer = ({path.name: file_sha256(path)} for path in (pack.patch, pack.reproducer))
    body = made.statement(details, tree, patch, reproducer).as_json()
    folder = toy.root / "receipts" / f"{pack.number:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{started:%Y%m%dT%H%M%SZ}_toy_{'0' * 12}.json").write_bytes(record_bytes(body))


def verb(*args):
    return CliRunner().invoke(command.app, [*map(str, args)])


def how(output):
    """{pack: how its patch applied} of what the verb prints."""
    return dict(line.split()[1:] for line in output.splitlines() if line.startswith("  "))


def left_out(output):
    """{pack: why it was left out} of what the verb prints."""
    return dict(line.split(" left out: ") for line in output.splitlines() if " left out: " in line)


def written(toy, *args):
    """What the verb wrote for the toy's release."""
    done = verb("--out", toy.root / "out", *args)
    assert done.exit_code == 0, (done.output, done.exception)
    return toy.root / "out" / "toyup-1.0", done.output


def test_a_series_is_written_in_order_and_says_how_each_applies(toy, desk):
    desk(2, MEAN)
    desk(3, TOTAL, after=[4])
    desk(4, SCALE)
    folder, output = written(toy)
    names = ["0001-change-2.patch", "0002-change-4.patch", "0003-change-3.patch"]
    assert (folder / "series").read_text().splitlines()[1:] == names
    assert (folder / "series").read_text().startswith(f"# toyup 1.0 ({'a' * 40}): git am *.patch\n")
    assert sorted(p.name for p in folder.iterdir()) == [*names, "series"]
    assert [line.split() for line in output.splitlines()[1:]] == [
        [names[0], "pack02", "clean"],
        [names[1], "pack04", "clean"],
        [names[2], "pack03", "clean"],
    ]
    assert "[PATCH 2/3] change 4" in (folder / names[1]).read_text()
    assert [re.findall(r"(?m)^Pack: (\d+)$", (folder / name).read_text()) for name in names] == [["02"], ["04"], ["03"]]


def test_a_patch_that_an_earlier_one_moves_is_allowed(toy, desk):
    desk(2, ('"""Sums."""\n', '"""Sums.\n\nOf values.\n"""\n'))
    desk(3, SCALE)
    folder, output = written(toy)
    assert how(output) == {"pack02": "clean", "pack03": "moved"}
    assert "git am *.patch" in (folder / "series").read_text()


NEAR = ('    """The sum."""\n    result = 0.0\n', '    """The sum."""\n    result = 0.00\n')
CONTEXT = ("    return result\n\n\ndef mean", "    return result + 0\n\n\ndef mean")


def test_a_patch_whose_context_an_earlier_one_changed_needs_a_three_way_merge(toy, desk):
    desk(2, NEAR)
    desk(3, CONTEXT)
    folder, output = written(toy)
    assert how(output) == {"pack02": "clean", "pack03": "three-way"}
    assert "git am -3 *.patch" in (folder / "series").read_text()


def test_a_three_way_merge_that_git_am_cannot_make_is_refused(toy, desk):
    desk(2, NEAR)
    pack = desk(3, CONTEXT, receipt=False)
    text = "".join(line for line in pack.patch.read_text().splitlines(True) if not line.startswith("index "))
    pack.patch.write_text(text)
    keep(toy, pack, 30)
    error = verb("--out", toy.root / "out").exception
    assert isinstance(error, PatchlaneError) and "git am" in error.what and "pack02" in error.what
    assert error.remedy == "leave pack03 out: python -m reproducers.series pack02"
    assert not (toy.root / "out").exists()


def test_two_packs_that_change_the_same_lines_are_both_named(toy, desk):
    desk(1, MEAN)
    desk(2, TOTAL)
    desk(5, ("values[1:]:", "values[0:]:"))
    error = verb("--out", toy.root / "out").exception
    assert isinstance(error, PatchlaneError) and "toyup/core.py" in error.what
    assert re.findall(r"pack\d+", error.what) == ["pack02", "pack05"]
    assert error.remedy == "leave pack05 out: python -m reproducers.series pack01 pack02"
    assert verb("--out", toy.root / "out", "pack01", "pack02").exit_code == 0


def test_what_git_am_puts_elsewhere_than_the_merge_is_refused(toy, desk, monkeypatch):
    desk(2, ('"""Sums."""\n', '"""Sums.\n\nOf values.\n"""\n'))
    desk(3, SCALE)
    monkeypatch.setattr("reproducers.upstream.merging.merge_file", lambda ours, base, theirs: b"another")
    error = verb("--out", toy.root / "out").exception
    assert isinstance(error, PatchlaneError) and error.remedy == "leave pack03 out: python -m reproducers.series pack02"


def test_packs_that_are_held_or_unproved_are_left_out_with_the_reason(toy, desk):
    desk(2, MEAN)
    desk(3, TOTAL, filing={"decision": "hold", "reason": "not yet"})
    desk(4, SCALE, receipt=False)
    stale = desk(5, SCALE)
    stale.patch.write_text(stale.patch.read_text() + "\n")
    folder, output = written(toy)
    assert (folder / "series").read_text().splitlines()[1:] == ["0001-change-2.patch"]
    why = left_out(output)
    assert set(why) == {"pack03", "pack04", "pack05"}
    assert "not yet" in why["pack03"] and "no receipt" in why["pack04"] and ": Validated: " in why["pack05"]
    folder, output = written(toy, "pack03", "2")
    assert how(output) == {"pack02": "clean", "pack03": "clean"} and not left_out(output)
    for name in ("pack04", "pack05"):
        refused = verb("--out", toy.root / "out", "pack02", name)
        assert refused.exit_code == 2 and f"series: {name}" in refused.output and "fix: " in refused.output


def test_an_older_series_is_replaced_and_a_strange_folder_is_not_touched(toy, desk):
    desk(2, MEAN)
    desk(3, TOTAL)
    folder, _ = written(toy)
    assert len(list(folder.iterdir())) == 3
    written(toy, "pack02")
    assert sorted(p.name for p in folder.iterdir()) == ["0001-change-2.patch", "series"]
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    (folder / "notes.txt").write_text("mine")
    refused = verb("--out", toy.root / "out").exception
    assert isinstance(refused, PatchlaneError) and "notes.txt" in str(refused)
    assert (folder / "notes.txt").read_text() == "mine" and not (folder / "0002-change-3.patch").exists()
    (toy.root / "file").write_text("")
    assert isinstance(verb("--out", toy.root / "file").exception, PatchlaneError)


def test_a_tree_that_is_not_in_the_store_is_cannot_test(toy, desk):
    desk(2, MEAN)
    (toy.store.root / "trees" / f"{KEY}.json").unlink()
    done = verb("--out", toy.root / "out")
    assert isinstance(done.exception, CannotTestHere) and "reproducers.run pack02" in str(done.exception)


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (["--pin", "nowhere"], "nowhere"),
        (["pack02", "--pin", "nowhere"], "nowhere"),
        (["pack99"], "pack99"),
    ],
)
def test_wrong_use_is_refused(desk, args, wrong):
    desk(2, MEAN)
    refused = verb(*args).exception
    assert isinstance(refused, PatchlaneError) and wrong in refused.what and refused.remedy


def test_a_ring_has_no_order(desk):
    packs = desk(2, MEAN, after=[3]), desk(3, TOTAL, after=[2])
    with pytest.raises(PatchlaneError) as caught:
        order([Member(pack, "live") for pack in packs])
    ring = re.findall(r"pack\d+", caught.value.what)
    assert set(ring) == {"pack02", "pack03"} and ring[0] == ring[-1] and "filing.after" in caught.value.remedy


def test_a_pin_that_is_stacked_brings_what_it_stands_on():
    receipts_at = ROOT / "receipts"
    choice = choose(list(PACKS.values()), [PACKS[12]], "beside_02", ENTRIES, receipts_at)
    assert [[m.pack.number for m in some] for some in choice.series.values()] == [[2, 12]]
    below = {
        name: entry.model_copy(update={"lanes": {}}) if name == "pack02" else entry for name, entry in ENTRIES.items()
    }
    with pytest.raises(PatchlaneError) as caught:
        choose(list(PACKS.values()), [PACKS[12]], "beside_02", below, receipts_at)
    assert caught.value.remedy.startswith("python -m reproducers.run pack02, then ")


@pytest.mark.parametrize("numbers", [(5, 17, 53), (4,), (1, 2, 3, 12, 16, 33, 35), (9,), (10, 11)], ids=str)
def test_real_packs_apply_in_series_as_the_overlay_merges_them(numbers, tmp_path):
    members = order([Member(PACKS[n], "live") for n in reversed(numbers)])
    store = Store(offline=True)
    first = members[0]
    tree = tree_of(first.pack, first.pin, store.root)
    if tree is None:
        pytest.skip(f"{first.pin.origin} is not in the store: python -m reproducers.run {first.pack.id}")
    total = len(members)
    mails = [
        (m, *mail(m.pack, "live", ENTRIES[m.pack.id], ROOT / "receipts", n, total)) for n, m in enumerate(members, 1)
    ]
    verify(tree, mails)
    strip = patching.strip_for(tree, first.pack.upstream.source_root)
    copy = tmp_path / "copy"
    pristine = pins.base_tree(store, first.pack, first.pin)
    applied = [merging.apply_alone(pristine, m.pack) for m in members]
    wanted = merging.merged_images(pristine, applied)
    for name in wanted:
        if (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / name, copy / name)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        git(copy, *words)
    for _, name, data in mails:
        (tmp_path / name).write_bytes(data)
        done = git(copy, "am", "-q", "-3", f"-p{strip}", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    assert {name: merging.image(copy, name) for name in wanted} == wanted
    subjects = git(copy, "log", "--reverse", "--format=%s").stdout.splitlines()[1:]
    assert subjects == [short_header.read(member.patch).fields["Subject"] for member in members]


def test_no_network_client_is_imported(toy, desk):
    pack = desk(2, TOTAL, FIRST, receipt=False)
    write(toy.run(pack), toy.root / "receipts", "toy", [], {})
    code = (
        "import pathlib, sys, reproducers.series as series, reproducers.desk.patches.series as library\n"
        f"library.ROOT = pathlib.Path({str(toy.root)!r})\n"
        f"series.app(['--out', {str(toy.root / 'out')!r}], standalone_mode=False)\n"
        f"print([name for name in {CLIENTS!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
    assert (toy.root / "out" / "toyup-1.0" / "series").exists()


def test_the_verb_ends_without_a_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "reproducers.series", "pack06"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "pack06" in done.stderr
    assert "fix:" in done.stderr and "Traceback" not in done.stderr


TESTS = """Subject: test that total adds all
Pack: 03
Origin: written for patchlane
Licence: Apache-2.0

No GPU is needed.

diff --git a/tests/test_total.py b/tests/test_total.py
new file mode 100644
--- /dev/null
+++ b/tests/test_total.py
@@ -0,0 +1,1 @@
+from toyup.core import total
"""


def test_the_tests_of_a_pack_follow_its_fix(toy, desk):
    desk(2, MEAN)
    (desk(3, TOTAL).folder / "tests.patch").write_text(TESTS)
    folder, output = written(toy)
    names = [line.split()[0] for line in output.splitlines()[1:]]
    assert names == ["0001-change-2.patch", "0002-change-3.patch", "0003-test-that-total-adds-all.patch"]
    assert (folder / "series").read_text().splitlines()[1:] == names
    assert "+++ b/tests/test_total.py" in (folder / names[2]).read_text()


def test_what_can_be_written_is_written_and_the_rest_is_said(toy, desk, monkeypatch):
    desk(2, MEAN)
    desk(3, TOTAL)
    desk(4, SCALE, receipt=False)
    planned, tried = command.planned, command.tried_on_tree

    def apart(names, pin):
        """The members as if each were of a tree of its own."""
        choice, entries = planned(names, pin)
        trees = {(m.pack.id, "1.0"): [m] for members in choice.series.values() for m in members}
        return dataclasses.replace(choice, series=trees), entries

    def absent(members, mails):
        if members[0].pack.number == 2:
            raise CannotTestHere("no tree", "python -m reproducers.run pack02")
        return tried(members, mails)

    monkeypatch.setattr(command, "planned", apart)
    monkeypatch.setattr(command, "tried_on_tree", absent)
    for names, code in ((["pack02", "pack03"], 77), (["pack02", "pack03", "pack04"], 2)):
        done = verb("--out", toy.root / "out", *names)
        assert done.exit_code == code, (done.output, done.exception)
        assert [path.name for path in (toy.root / "out").iterdir()] == ["pack03-1.0"]
        assert "fix: python -m reproducers.run pack02" in done.output and ("pack04" in done.output) is (code == 2)


def test_patches_below_a_source_folder_say_their_depth_on_a_wheel(toy, desk):
    upstream = yaml.safe_load(RECORD)["upstream"] | {"source_root": "src"}
    pack = desk(2, MEAN, receipt=False, upstream=upstream)
    pack.patch.write_text(pack.patch.read_text().replace("a/toyup", "a/src/toyup").replace("b/toyup", "b/src/toyup"))
    keep(toy, pack, 1)
    folder, output = written(toy)
    told = (folder / "series").read_text().splitlines()[0]
    option = re.search(r"git am (-p\d)", told)[1]
    assert told in output and option == "-p2"
    wheel = toy.root / "wheel"
    for name, text in SOURCE.items():
        (wheel / name).parent.mkdir(parents=True, exist_ok=True)
        (wheel / name).write_text(text)
    for arguments in (
        ["init", "-q"],
        ["add", "-A"],
        ["commit", "-qm", "wheel"],
        ["am", "-q", option, str(folder / "0001-change-2.patch")],
    ):
        assert git(wheel, *arguments).returncode == 0
    assert MEAN[1] in (wheel / "toyup/core.py").read_text()


@pytest.fixture
def clone(tmp_path):
    """A repository with a base, and a tag whose core.py has a line more."""
    repo = toys.write_tree(tmp_path / "clone", SOURCE)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"], ["tag", "v1.0"]):
        toys.git(*words, cwd=repo)
    toys.write_tree(repo, edited(core="# a line\n" + toys.CORE.replace("values[1:]:", "values[2:]:")))
    for words in (["commit", "-qam", "on"], ["tag", "v1.1"]):
        toys.git(*words, cwd=repo)
    return repo


def carried(tmp_path, clone, *changes):
    (tmp_path / "ours.patch").write_text(toys.diff(tmp_path, SOURCE, edited(*changes)))
    given = importing.subject("toy/toyup", "1.0", clone, None, None)
    entry.write(
        tmp_path, "q", importing.entries(mails.files([tmp_path / "ours.patch"]), given, "theirs", None, False)[0]
    )
    return str(tmp_path / "q")


def test_a_carried_queue_moves(tmp_path, clone):
    args = [
        carried(tmp_path, clone, TOTAL, FIRST),
        "--onto",
        "1.1",
        "--upstream",
        str(clone),
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(command.app, args, catch_exceptions=False)
    assert done.exit_code == 1 and "01_ours" in done.stdout and "values[2:]" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["q-1.1", "q-1.1-left"]
    kept = (tmp_path / "q/01_ours/carried.patch").read_bytes()
    assert kept == (tmp_path / "ours.patch").read_bytes()


def test_a_carried_queue_moves_whole(tmp_path, clone):
    args = [carried(tmp_path, clone, FIRST), "--onto", "v1.1", "--upstream", str(clone), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(command.app, args, catch_exceptions=False).exit_code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["q-v1.1"]
    for wrong in (args[:1], [args[0], "pack07", *args[1:]], ["pack07", *args[1:]]):
        with pytest.raises(PatchlaneError):
            CliRunner().invoke(command.app, wrong, catch_exceptions=False)


def test_a_file_that_upstream_renamed(tmp_path, clone):
    (clone / "toyup/core.py").rename(clone / "toyup/sums.py")
    for words in (["add", "-A"], ["commit", "-qm", "a better name"], ["tag", "v1.2"]):
        toys.git(*words, cwd=clone)
    args = [carried(tmp_path, clone, TOTAL, FIRST), "--onto", "v1.2", "--upstream", str(clone)]
    done = CliRunner().invoke(command.app, [*args, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 1 and "toyup/sums.py" in done.stdout
    assert "+++ b/toyup/sums.py" in (tmp_path / "out/q-v1.2/0001-ours.patch").read_text()
    assert (tmp_path / "out/q-v1.2-left/0001-ours.patch").is_file()
