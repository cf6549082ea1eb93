"""Every point passes and fails at least once, and the verb says so in table, JSON and exit code."""

import datetime
import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from ready import BODY, DAY, edit, points, receipt, record, report, write_pack
from toy import SOURCE, THREAD, TOTAL, edited, git, write_tree
from typer.testing import CliRunner

from reproducers import preflight
from reproducers.base.errors import PatchlaneError
from reproducers.desk.gate import approval, checklist, passing
from reproducers.desk.rules.patch import formatters
from reproducers.desk.text import dossier
from reproducers.record.schema import ROOT, load_pack

SEVEN = [
    "reproduced today", "text", "reproducer attached", "no private words", "upstream's formatter",
    "applies to its branch", "approval",
]  # fmt: skip
LIGER_THREAD = THREAD | {"url": "https://github.com/linkedin/Liger-Kernel/issues/3", "looked_up": DAY}
LIGER = {
    "upstream__repo": "linkedin/Liger-Kernel",
    "upstream_state__threads": [LIGER_THREAD],
    "filing__thread": LIGER_THREAD["url"],
}
PULL = THREAD | {"url": "https://github.com/toy/toyup/pull/4", "relation": "overlaps", "looked_up": DAY}


def verb(*args):
    return CliRunner().invoke(preflight.app, ["pack07", *map(str, args)])


def failed(desk, **options):
    return {name: point for name, point in points(desk, **options).items() if point.result == "fail"}


def given(desk, change):
    """The dossier's files after ``change``, for what a template cannot be made to give."""
    kept = dossier.files

    def files(*args):
        found = kept(*args)
        change(found)
        return found

    return files


def test_nothing_but_a_person_is_wanting(desk):
    found = points(desk)
    assert list(found) == SEVEN
    assert [point.result for point in found.values()] == ["pass"] * 6 + ["person"]
    assert found["reproduced today"].what.startswith("REPRODUCED_AND_FIXED on bench (cpu), 07/20261124T090000Z_bench_")
    assert found["text"].what == "renders as comment; lint finds nothing"
    assert found["no private words"].what == "5 files searched"
    assert found["upstream's formatter"].what == "no formatter of toy/toyup is known"
    assert found["applies to its branch"].what == "on 1.0"
    assert found["approval"].remedy == "python -m reproducers.approve pack07 --as comment"


# Point 1


def only(desk, **options):
    """Point 1 where the day's only receipt is this one."""
    shutil.rmtree(desk.root / "receipts")
    receipt(desk, load_pack(desk.folder), **options)
    return points(desk)["reproduced today"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "local"}, "its host has no name"),
        ({"day": DAY - datetime.timedelta(days=1)}, f"no receipt of both arms at pin live from {DAY}"),
        ({"day": DAY + datetime.timedelta(days=1)}, f"no receipt of both arms at pin live from {DAY}"),
        ({"arm": "pristine"}, f"no receipt of both arms at pin live from {DAY}"),
    ],
)
def test_a_receipt_that_does_not_count(desk, options, said):
    point = only(desk, **options)
    assert point.result == "fail" and point.what.endswith(said)
    run, rest = point.remedy.split(", then ")
    assert run == "python -m reproducers.run pack07 --lane cpu --host NAME"
    assert rest == "python -m reproducers.manifest refresh"


def test_a_folder_of_somebodys_is_not_the_live_pin(desk):
    found = only(desk, upstream=desk.upstream, source=edited(TOTAL))
    assert found.what == f"no receipt of both arms at pin live from {DAY}"


@pytest.mark.parametrize("digit", ["a" * 40, "b" * 64])
def test_another_pin_since(desk, digit):
    edit(desk.folder / "pack.yaml", digit, "c" * len(digit))
    assert points(desk)["reproduced today"].what.endswith("taken on another tree than the live pin's")


def test_a_commit_that_the_pin_has_got_since(desk):
    full = (desk.folder / "pack.yaml").read_text()
    edit(desk.folder / "pack.yaml", "    sha: " + "a" * 40 + "\n", "")
    assert only(desk).result == "pass"
    write_tree(desk.folder, {"pack.yaml": full})
    assert points(desk)["reproduced today"].result == "pass"


@pytest.mark.parametrize("name", ["reproducer.py", "fix.patch"])
def test_a_change_since(desk, name):
    path = desk.folder / name
    path.write_text(path.read_text() + "\n")
    assert points(desk)["reproduced today"].what.endswith(f"{name} changed since")


def test_another_verdict(desk):
    write_pack(desk, edits=[TOTAL])
    assert "its verdict is FIX_INEFFECTIVE, owed is REPRODUCED_AND_FIXED" in only(desk).what


def test_a_later_bad_receipt_does_not_hide_a_good_one(desk):
    receipt(desk, load_pack(desk.folder), host="local", hour=10)
    assert points(desk)["reproduced today"].result == "pass"


def test_a_report_owes_the_bug_and_a_guard_its_sentinel(desk):
    pack = report(desk)
    shutil.rmtree(desk.root / "receipts")
    path = receipt(desk, pack)
    found = points(desk, form="issue")
    assert found["reproduced today"].result == "pass"
    assert found["upstream's formatter"].what == "the pack has no patch"
    guard = pack.model_copy(update={"kind": "guard"})
    assert passing.refusal(guard, path) == "it does not say REGRESSION_GUARD_PASSED"


def test_a_receipt_that_was_altered_stops_everything(desk):
    (path,) = (desk.root / "receipts" / "07").glob("*.json")
    edit(path, '"alias": "bench"', '"alias": "bunch"')
    with pytest.raises(PatchlaneError, match="do not verify"):
        points(desk)


# Points 2 and 3


def test_a_text_that_does_not_render(desk):
    write_tree(desk.folder, {"body.md.j2": BODY.replace('"total")', '"totals")', 1)})
    found = failed(desk)
    assert "has no check 'totals'" in found["text"].what and found["text"].remedy.startswith("name a check")
    assert set(found) == {"text", "reproducer attached", "no private words", "applies to its branch"}


def test_a_text_that_lint_faults(desk):
    write_tree(desk.folder, {"body.md.j2": BODY.replace("never added", "never added in 3.7 ms")})
    found = failed(desk)
    assert list(found) == ["text"] and "3.7" in found["text"].what
    assert found["text"].remedy == "python -m reproducers.lint pack07"


def test_what_lint_could_not_look_at_has_not_passed(desk):
    shutil.rmtree(desk.root / "store" / "trees")
    found = failed(desk)
    assert (
        list(found) == ["text", "applies to its branch"]
        and "could not look: 1.0 is not in the store" in found["text"].what
    )


def fill(name, size):
    def change(files):
        files[name] = b"x" * size

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.pop("pack07.py"), "there is no pack07.py"),
        (fill("pack07.py", 9), "pack07.py is not the export of reproducer.py as it is"),
        (fill("comment.md", 65_537), "comment.md has 65,537 characters, GitHub takes 65,536"),
        (fill("pack07.log", 90_001), "pack07.log has 90,001 bytes, GitHub takes 90,000 as one attachment"),
    ],
)
def test_what_cannot_be_attached(desk, monkeypatch, change, said):
    monkeypatch.setattr(checklist, "ATTACHMENT", 90_000)  # megabytes take long to search
    monkeypatch.setattr(dossier, "files", given(desk, change))
    found = failed(desk)
    assert list(found) == ["reproducer attached"] and said in found["reproducer attached"].what


@pytest.mark.parametrize(("name", "size"), [("comment.md", 65_536), ("pack07.log", 90_000)])
def test_what_just_fits(desk, monkeypatch, name, size):
    assert checklist.ATTACHMENT <= 25 * 2**20
    monkeypatch.setattr(checklist, "ATTACHMENT", 90_000)
    monkeypatch.setattr(dossier, "files", given(desk, fill(name, size)))
    assert failed(desk) == {}


# Points 4 and 5


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (b"see /home/mallory/x\n", "private-path"),
        (b"ask jane@toy.io\n", "private-email"),
        (b"\nAKIA" + b"A" * 16, "private-token"),
        (b"on gpu7.corp\n", "private-host"),
    ],
)
def test_private_words_in_any_file(desk, monkeypatch, said, rule):
    monkeypatch.setattr(dossier, "files", given(desk, lambda files: files.update({"pack07.log": said})))
    found = failed(desk)
    assert list(found) == ["no private words"]
    assert f"pack07.log:{2 if said[:1] == bytes([10]) else 1}: {rule}: " in found["no private words"].what


def test_private_words_that_lint_reads_beside_the_files(desk):
    write_tree(desk.folder, {"notes.md": "Made in /home/mallory/work.\n"})
    assert "packs/07_toy/notes.md:1: private-path" in failed(desk)["no private words"].what


def test_an_exempted_find_passes(desk, monkeypatch):
    monkeypatch.setattr(
        dossier, "files", given(desk, lambda files: files.update({"x.log": b"in /opt\n/workspace/ours\n"}))
    )
    assert list(failed(desk)) == ["no private words"]
    row = {"rule": "private-path", "pack": "pack07", "match": "/workspace/ours", "reason": "an example"}
    write_tree(desk.packs, {"lint-exemptions.yaml": yaml.safe_dump([row])})
    found = failed(desk)
    assert list(found) == ["text"] and "exemption not needed" in found["text"].what  # lint reads no x.log
    write_tree(desk.folder, {"notes.md": "Not in /workspace/ours.\n"})
    assert failed(desk) == {}


def test_the_address_of_a_patch_that_nobody_has_passes(desk, monkeypatch):
    mail = b"From: patchlane <patchlane@patchlane.invalid>\n"
    monkeypatch.setattr(dossier, "files", given(desk, lambda files: files.update({"0001-x.patch": mail})))
    assert failed(desk) == {}


def formatting(desk, **changed):
    """Point 5 of the pack as one of an upstream that ruff formats."""
    write_tree(desk.folder, {"pack.yaml": record(**LIGER, **changed)})
    return points(desk)["upstream's formatter"]


def test_the_formatter_of_the_upstream_was_run(desk):
    assert formatting(desk).what == "the patch is as linkedin/Liger-Kernel formats"
    write_pack(desk, edits=[("values[1:]:", "( values ):")])
    point = formatting(desk)
    assert point.result == "fail" and "toyup/core.py:7 is not formatted" in point.what


def test_an_exempted_line_serves_a_comment_and_no_pull_request(desk):
    write_pack(desk, edits=[("values[1:]:", "( values ):")])
    row = {"rule": "format-upstream", "pack": "pack07", "match": "toyup/core.py:7", "reason": "an example"}
    write_tree(desk.packs, {"lint-exemptions.yaml": yaml.safe_dump([row])})
    write_tree(desk.folder, {"pack.yaml": record(**LIGER)})
    found = {form: points(desk, form)["upstream's formatter"] for form in ("issue", "pr")}
    assert found["issue"].result == "pass" and "1 lines exempted" in found["issue"].what
    assert found["pr"].result == "fail" and "toyup/core.py:7 is not formatted" in found["pr"].what


def test_a_formatter_that_cannot_run_here_has_not_passed(desk, monkeypatch):
    absent = formatters.Formatter({"no_such_formatter": "1.0"}, "", str)
    monkeypatch.setitem(formatters.FORMATTERS, "linkedin/Liger-Kernel", absent)
    point = formatting(desk)
    assert (point.result, point.remedy) == ("fail", "pip install no_such_formatter==1.0")


def test_a_tree_that_is_not_there_has_not_passed(desk):
    shutil.rmtree(desk.root / "store" / "trees")
    point = formatting(desk)
    assert (point.result, point.remedy) == ("fail", "python -m reproducers.run pack07 --lane cpu")


# Point 6


def upstream(desk, source, branch="main"):
    """A clone whose main branch has these sources."""
    clone = write_tree(desk.root / "clone", source)
    for command in (["init", "-q", "-b", branch], ["add", "-A"], ["commit", "-qm", "main"]):
        git(*command, cwd=clone)
    return clone


def branch(desk, form="pr", clone=None):
    """Point 6 of the pack in that form."""
    write_tree(desk.folder, {"pack.yaml": record(filing={"decision": form, "reason": "it is live"})})
    pack = load_pack(desk.folder)
    found = checklist.examine(pack, desk.root / "receipts", desk.root / "store", form, DAY, clone)
    return {point.name: point for point in found.points}["applies to its branch"]


def test_a_patch_that_is_not_of_its_tree(desk):
    (core,) = (desk.root / "store" / "trees").glob("*/toyup/core.py")
    edit(core, "    for value in values[1:]:", "    for value in list(values[1:]):")
    point = branch(desk, "issue")
    assert point.result == "fail" and point.what.startswith("not on 1.0: ")


def test_a_pull_request_is_tried_on_main(desk):
    point = branch(desk)
    assert point.result == "fail" and point.remedy.endswith("the same command with --clone DIR")
    assert branch(desk, "issue").result == "pass"  # the release has the bug that it is about
    moved = {**SOURCE, "toyup/core.py": '"""More."""\n\nimport os\n' + SOURCE["toyup/core.py"]}
    point = branch(desk, clone=upstream(desk, moved))
    assert point.result == "pass" and re.fullmatch(r"on 1\.0 and main at [0-9a-f]{40}", point.what)


def test_a_pull_request_that_main_does_not_take(desk):
    changed = edited(("values[1:]:", "values[2:]:"))
    point = branch(desk, clone=upstream(desk, changed, "master"))
    assert point.result == "fail" and point.what.startswith("not on main at ")


def test_a_clone_that_is_none(desk):
    with pytest.raises(PatchlaneError) as found:
        branch(desk, clone=desk.root)
    assert found.value.exit_code == 2 and "--clone" in found.value.remedy


# What bars the pack, and the form


@pytest.mark.parametrize(
    ("changed", "form", "rules"),
    [
        ({}, "issue", ["decision"]),
        ({"filing__decision": "hold"}, "issue", ["decision"]),
        ({"upstream_state__search__date": DAY.replace(month=9)}, "comment", ["search age"]),
        ({"upstream_state__threads": [THREAD | {"looked_up": DAY}, PULL]}, "pr", ["decision", "open pull request"]),
    ],
)
def test_what_bars_the_pack(desk, changed, form, rules):
    write_tree(desk.folder, {"pack.yaml": record(**changed)})
    found = [name for name, point in points(desk, form=form).items() if name not in SEVEN and point.result == "fail"]
    assert found == rules


def test_what_bars_it_comes_first_and_a_person_last(desk):
    shutil.rmtree(desk.root / "store" / "trees")
    write_tree(desk.folder, {"pack.yaml": record(filing__decision="issue")})
    found = checklist.judge("pack07", "comment", DAY)
    assert [point.name for point in found.open] == ["decision", "text", "applies to its branch", "approval"]
    assert checklist.next_step(found) == "--as issue, or packs/07_toy/pack.yaml, filing.decision: comment"


def test_the_form_is_the_decided_one_and_no_other_is_taken(desk):
    pack = load_pack(desk.folder)
    assert checklist.form_of(pack, None) == "comment" and checklist.form_of(pack, "pr") == "pr"
    assert checklist.form_of(report(desk), None) == "issue"
    with pytest.raises(PatchlaneError, match="cannot be filed as 'pr'"):
        checklist.form_of(report(desk), "pr")
    held = pack.model_copy(update={"filing": pack.filing.model_copy(update={"decision": "hold"})})
    assert checklist.form_of(held, None) == "issue"


# The verb


def test_exit_1_with_the_table_and_the_next_step(desk):
    done = verb()
    assert done.exit_code == 1 and "pack07 as comment on 2026-11-24: total forgets" in done.output
    assert "a person's" in done.output
    assert done.output.splitlines()[-1] == ("Open. Next: python -m reproducers.approve pack07 --as comment")


def test_exit_0_when_all_pass(desk):
    found = checklist.judge("pack07", None, DAY)
    given = {"form": "comment", "name": "Jane Doe", "date": DAY, "digest": dossier.digest(found.files)}
    approval.write(found.pack, approval.Approval.model_validate(given | {"files": dossier.sums(found.files)}))
    done = verb("--json")
    said = json.loads(done.output)
    assert done.exit_code == 0 and said["passed"] and given["digest"] not in done.output
    assert said["next"].startswith("python -m reproducers.render pack07 --as comment --out DIR;")
    assert [point["name"] for point in said["points"]] == SEVEN and {p["result"] for p in said["points"]} == {"pass"}
    assert verb().output.splitlines()[-1].startswith("Ready. Next: ")


def test_json_of_a_pack_that_has_no_text(desk):
    write_tree(desk.folder, {"body.md.j2": "{{"})
    done = verb("--json", "--date", DAY)
    assert done.exit_code == 1 and not json.loads(done.output)["passed"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pack99"], "no pack 'pack99'"),
        (["pack05", "--as", "letter"], "cannot be filed as 'letter'"),
        (["pack05", "--date", "soon"], "--date soon: not a date"),
    ],
)
def test_bad_input_exits_2_with_its_mend(args, said):
    command = [sys.executable, "-m", "reproducers.preflight", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and "fix:" in done.stderr and "Traceback" not in done.stderr
