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
from toy import FIRST, PUBLISHED, SOURCE, THREAD, TOTAL, edited, git, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from reproducers import preflight
from reproducers.desk.gate import approval, checklist, passing
from reproducers.desk.rules.engine import EXEMPTION, examine, meanings
from reproducers.desk.rules.patch import formatters
from reproducers.desk.text import dossier
from reproducers.evidence import receipts
from reproducers.record.schema import ROOT, load_pack
from reproducers.trial.experiment import Request, execute

EIGHT = [
    "reproduced today",
    "text",
    "reproducer attached",
    "no private words",
    "upstream's formatter",
    "applies to its branch",
    "newest release",
    "approval",
]
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
    real = dossier.files

    def files(*args):
        changed = real(*args)
        change(changed)
        return changed

    return files


def test_nothing_but_a_person_is_wanting(desk):
    by_name = points(desk)
    assert list(by_name) == EIGHT
    assert [point.result for point in by_name.values()] == ["pass"] * 7 + ["person"]
    assert by_name["reproduced today"].what.startswith(
        "REPRODUCED_AND_FIXED on bench (cpu), 07/20261124T090000Z_bench_"
    )
    assert "comment" in by_name["text"].what
    assert by_name["no private words"].what.startswith("5 files")
    assert "toy/toyup" in by_name["upstream's formatter"].what
    assert by_name["applies to its branch"].what == "on 1.0"
    assert by_name["approval"].remedy == "python -m reproducers.approve pack07 --as comment"


# Point 1


def only(desk, **options):
    """Point 1 where the day's only receipt is this one."""
    shutil.rmtree(desk.root / "receipts")
    receipt(desk, load_pack(desk.folder), **options)
    return points(desk)["reproduced today"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"host": "local"}, "REPRODUCED_AND_FIXED on local (cpu), 07/20261124T090000Z_local_"),  # refused
        ({"day": DAY - datetime.timedelta(days=1)}, "no receipt"),  # not looked at
        ({"day": DAY + datetime.timedelta(days=1)}, "no receipt"),
        ({"arm": "pristine"}, "no receipt"),
    ],
)
def test_a_receipt_that_does_not_count(desk, options, what):
    point = only(desk, **options)
    assert point.result == "fail" and point.what.startswith(what)
    run, rest = point.remedy.split(", then ")
    assert run == "python -m reproducers.run pack07 --lane cpu --host NAME"
    assert rest == "python -m reproducers.manifest refresh"


def test_somebodys_own_folder_is_not_the_live_pin(desk):
    point = only(desk, upstream=desk.upstream, source=edited(TOTAL))
    assert point.result == "fail" and point.what.startswith("no receipt")


@pytest.mark.parametrize("digit", ["a" * 40, "b" * 64])
def test_another_pin_since(desk, digit):
    desk.publishes(PUBLISHED.replace(digit, "c" * len(digit)))
    point = points(desk)["reproduced today"]
    assert point.result == "fail" and "another tree" in point.what


def test_a_commit_that_was_added_to_the_pin_since(desk):
    desk.publishes(PUBLISHED.replace("    sha: " + "a" * 40 + "\n", ""))
    assert only(desk).result == "pass"
    desk.publishes(PUBLISHED)
    assert points(desk)["reproduced today"].result == "pass"


@pytest.mark.parametrize("name", ["reproducer.py", "fix.patch"])
def test_a_change_since(desk, name):
    path = desk.folder / name
    path.write_text(path.read_text() + "\n")
    point = points(desk)["reproduced today"]
    assert point.result == "fail" and f": {name} changed" in point.what


def test_another_verdict(desk):
    write_pack(desk, edits=[TOTAL])
    point = only(desk)
    assert point.result == "fail" and point.what.startswith("FIX_INEFFECTIVE on bench")
    assert point.what.endswith(" REPRODUCED_AND_FIXED")


def test_a_later_bad_receipt_does_not_hide_a_good_one(desk):
    receipt(desk, load_pack(desk.folder), host="local", hour=10)
    assert points(desk)["reproduced today"].result == "pass"


def test_a_report_owes_the_bug_and_a_guard_its_sentinel(desk):
    pack = report(desk)
    shutil.rmtree(desk.root / "receipts")
    path = receipt(desk, pack)
    by_name = points(desk, form="issue")
    assert by_name["reproduced today"].result == by_name["upstream's formatter"].result == "pass"
    assert "REGRESSION_GUARD_PASSED" in passing.refusal(pack.model_copy(update={"kind": "guard"}), path)


def test_a_receipt_that_was_altered_stops_everything(desk):
    (path,) = (desk.root / "receipts" / "07").glob("*.json")
    edit(path, '"alias": "bench"', '"alias": "bunch"')
    with pytest.raises(PatchlaneError, match=path.name):
        points(desk)


# Points 2 and 3


def test_a_text_that_does_not_render(desk):
    write_tree(desk.folder, {"body.md.j2": BODY.replace('"total")', '"totals")', 1)})
    failing = failed(desk)
    assert "'totals'" in failing["text"].what and failing["text"].remedy
    assert set(failing) == {"text", "reproducer attached", "no private words", "applies to its branch"}


def test_a_text_that_lint_faults(desk):
    write_tree(desk.folder, {"body.md.j2": BODY.replace("never added", "never added in 3.7 ms")})
    failing = failed(desk)
    assert list(failing) == ["text"] and "3.7" in failing["text"].what
    assert failing["text"].remedy == "python -m reproducers.lint pack07"


def test_a_rule_that_lint_could_not_run_has_not_passed(desk):
    shutil.rmtree(desk.root / "store" / "trees")
    failing = failed(desk)
    assert list(failing) == ["text", "applies to its branch"]
    rules = {line.partition(" ")[0] for line in failing["text"].what.splitlines()}
    assert rules and rules <= set(meanings())


def fill(name, data):
    """A change that replaces a file by these bytes, or by that many."""
    return lambda files: files.update({name: data if isinstance(data, bytes) else b"x" * data})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda files: files.pop("pack07.py"), ["pack07.py"]),
        (fill("pack07.py", 9), ["pack07.py", "reproducer.py"]),
        (fill("comment.md", 65_537), ["comment.md", "65,537", "65,536"]),
        (fill("pack07.log", 90_001), ["pack07.log", "90,001", "90,000"]),
    ],
)
def test_a_file_that_cannot_be_attached(desk, monkeypatch, change, what):
    monkeypatch.setattr(checklist, "ATTACHMENT", 90_000)  # megabytes take long to search
    monkeypatch.setattr(dossier, "files", given(desk, change))
    ((name, point),) = failed(desk).items()
    assert name == "reproducer attached" and all(word in point.what for word in what) and point.remedy


@pytest.mark.parametrize(("name", "size"), [("comment.md", 65_536), ("pack07.log", 90_000)])
def test_a_file_that_just_fits(desk, monkeypatch, name, size):
    assert checklist.ATTACHMENT <= 25 * 2**20
    monkeypatch.setattr(checklist, "ATTACHMENT", 90_000)
    monkeypatch.setattr(dossier, "files", given(desk, fill(name, size)))
    assert failed(desk) == {}


# Points 4 and 5


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"see /home/mallory/x\n", "private-path"),
        (b"ask jane@toy.io\n", "private-email"),
        (b"\nAKIA" + b"A" * 16, "private-token"),
        (b"on gpu7.corp\n", "private-host"),
    ],
)
def test_private_words_in_any_file(desk, monkeypatch, text, rule):
    monkeypatch.setattr(dossier, "files", given(desk, fill("pack07.log", text)))
    failing = failed(desk)
    assert list(failing) == ["no private words"]
    assert f"pack07.log:{1 + text[:1].count(10)}: {rule}: " in failing["no private words"].what


def test_private_words_that_lint_reads_beside_the_files(desk):
    write_tree(desk.folder, {"notes.md": "Made in /home/mallory/work.\n"})
    assert "packs/07_toy/notes.md:1: private-path" in failed(desk)["no private words"].what


def test_an_exempted_find_passes(desk, monkeypatch):
    monkeypatch.setattr(dossier, "files", given(desk, fill("x.log", b"in /opt\n/workspace/ours\n")))
    assert list(failed(desk)) == ["no private words"]
    row = {
        "rule": "private-path",
        "pack": "pack07",
        "match": "/workspace/ours",
        "reason": "an example",
        "until": "2099-01-01",
    }
    write_tree(desk.packs, {"lint-exemptions.yaml": yaml.safe_dump([row])})
    failing = failed(desk)
    assert list(failing) == ["text"] and EXEMPTION in failing["text"].what  # not needed: lint reads no x.log
    write_tree(desk.folder, {"notes.md": "Not in /workspace/ours.\n"})
    assert failed(desk) == {}


def test_the_reserved_address_of_a_patch_passes(desk, monkeypatch):
    mail = b"From: patchlane <patchlane@patchlane.invalid>\n"
    monkeypatch.setattr(dossier, "files", given(desk, fill("0001-x.patch", mail)))
    assert failed(desk) == {}


def formatting(desk, **changed):
    """Point 5 of the pack as one of an upstream that ruff formats."""
    write_tree(desk.folder, {"pack.yaml": record(**LIGER, **changed)})
    return points(desk)["upstream's formatter"]


def test_the_formatter_of_the_upstream_was_run(desk):
    assert formatting(desk).result == "pass"
    write_pack(desk, edits=[("values[1:]:", "( values ):")])
    point = formatting(desk)
    assert point.result == "fail" and "format-upstream" in point.what and "toyup/core.py:7 " in point.what


def test_an_exempted_line_serves_a_comment_and_no_pull_request(desk):
    write_pack(desk, edits=[("values[1:]:", "( values ):")])
    row = {
        "rule": "format-upstream",
        "pack": "pack07",
        "match": "toyup/core.py:7",
        "reason": "an example",
        "until": "2099-01-01",
    }
    write_tree(desk.packs, {"lint-exemptions.yaml": yaml.safe_dump([row])})
    write_tree(desk.folder, {"pack.yaml": record(**LIGER)})
    issue, pull = (points(desk, form)["upstream's formatter"] for form in ("issue", "pr"))
    assert issue.result == "pass" and "1 lines" in issue.what
    assert pull.result == "fail" and "toyup/core.py:7 " in pull.what


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
    examined = checklist.examine(pack, desk.root / "receipts", desk.root / "store", form, DAY, clone)
    return {point.name: point for point in examined.points}["applies to its branch"]


def test_a_patch_that_is_not_of_its_tree(desk):
    (core,) = (desk.root / "store" / "trees").glob("*/toyup/core.py")
    edit(core, "    for value in values[1:]:", "    for value in list(values[1:]):")
    point = branch(desk, "issue")
    assert point.result == "fail" and point.what.startswith("not on 1.0: ")


def test_a_pull_request_is_tried_on_main(desk):
    point = branch(desk)
    assert point.result == "fail" and point.remedy.endswith(" --clone DIR")
    assert branch(desk, "issue").result == "pass"  # the release has the bug that it is about
    moved = {**SOURCE, "toyup/core.py": '"""More."""\n\nimport os\n' + SOURCE["toyup/core.py"]}
    point = branch(desk, clone=upstream(desk, moved))
    assert point.result == "pass" and re.fullmatch(r"on 1\.0 and main at [0-9a-f]{40}", point.what)


def test_a_pull_request_that_main_does_not_take(desk):
    changed = edited(("values[1:]:", "values[2:]:"))
    point = branch(desk, clone=upstream(desk, changed, "master"))
    assert point.result == "fail" and re.search(r"main at [0-9a-f]{40}: .", point.what)


def test_a_clone_that_is_none(desk):
    with pytest.raises(PatchlaneError) as refused:
        branch(desk, clone=desk.root)
    assert refused.value.exit_code == 2 and "--clone" in refused.value.remedy


# Reasons against filing, and the form


@pytest.mark.parametrize(
    ("changed", "form", "rules"),
    [
        ({}, "issue", ["decision"]),
        ({"filing__decision": "hold"}, "issue", ["decision"]),
        ({"upstream_state__search__date": DAY.replace(month=9)}, "comment", ["search age"]),
        ({"upstream_state__threads": [THREAD | {"looked_up": DAY}, PULL]}, "pr", ["decision", "open pull request"]),
    ],
)
def test_a_reason_against_filing(desk, changed, form, rules):
    write_tree(desk.folder, {"pack.yaml": record(**changed)})
    assert [name for name in failed(desk, form=form) if name not in EIGHT] == rules


def test_the_reasons_against_filing_come_first_and_a_person_last(desk):
    shutil.rmtree(desk.root / "store" / "trees")
    write_tree(desk.folder, {"pack.yaml": record(filing__decision="issue")})
    judged = checklist.judge("pack07", "comment", DAY)
    assert [point.name for point in judged.open] == ["decision", "text", "applies to its branch", "approval"]
    assert checklist.next_step(judged) == "--as issue, or packs/07_toy/pack.yaml, filing.decision: comment"


def test_the_form_is_the_decided_one_and_no_other_is_taken(desk):
    pack = load_pack(desk.folder)
    assert checklist.form_of(pack, None) == "comment" and checklist.form_of(pack, "pr") == "pr"
    assert checklist.form_of(report(desk), None) == "issue"
    with pytest.raises(PatchlaneError) as refused:
        checklist.form_of(report(desk), "pr")
    assert refused.value.remedy == "--as issue or comment"
    held = pack.model_copy(update={"filing": pack.filing.model_copy(update={"decision": "hold"})})
    assert checklist.form_of(held, None) == "issue"


# The verb


def test_exit_1_with_the_table_and_the_next_step(desk):
    done = verb()
    assert done.exit_code == 1 and done.output.startswith("pack07 as comment on 2026-11-24: ")
    assert "a person's" in done.output
    assert done.output.splitlines()[-1].endswith(": python -m reproducers.approve pack07 --as comment")


def test_no_width_breaks_a_command(desk, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    done = verb("--date", "2026-11-25")
    fixes = [line.removeprefix("    fix: ") for line in done.output.splitlines() if line.startswith("    fix: ")]
    judged = checklist.judge("pack07", None, datetime.date(2026, 11, 25))
    assert fixes == [point.remedy for point in (*judged.blockers, *judged.points) if point.remedy]
    assert max(map(len, fixes)) > 60


def test_exit_0_when_all_pass(desk):
    judged = checklist.judge("pack07", None, DAY)
    given = {"form": "comment", "name": "Jane Doe", "date": DAY, "digest": dossier.digest(judged.files)}
    approval.write(judged.pack, approval.Approval.model_validate(given | {"files": dossier.sums(judged.files)}))
    done = verb("--json")
    content = json.loads(done.output)
    assert done.exit_code == 0 and content["passed"] and given["digest"] not in done.output
    assert content["next"].startswith("python -m reproducers.render pack07 --as comment --out DIR;")
    assert [(point["name"], point["result"]) for point in content["points"]] == [(name, "pass") for name in EIGHT]
    assert verb().output.splitlines()[-1].startswith("Ready. ")


def test_json_of_a_pack_that_has_no_text(desk):
    write_tree(desk.folder, {"body.md.j2": "{{"})
    done = verb("--json", "--date", DAY)
    assert done.exit_code == 1 and not json.loads(done.output)["passed"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["pack99"], "'pack99'"),
        (["pack05", "--as", "letter"], "'letter'"),
        (["pack05", "--date", "soon"], "--date soon"),
    ],
)
def test_bad_input_exits_2_with_its_remedy(args, named):
    command = [sys.executable, "-m", "reproducers.preflight", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and named in done.stderr and "fix:" in done.stderr and "Traceback" not in done.stderr


def tried(toy, release, source):
    """A receipt of that release, as a sweep leaves it: the pristine arm on the tree of the index's file."""
    pack = load_pack(toy.folder)
    text = (toy.folder / "pack.yaml").read_text()
    files = f"{{toyup-{release}-py3-none-any.whl: {'d' * 64}}}"
    toy.publishes(f"{PUBLISHED}  '{release}':\n    artifacts: {files}\n")
    pin = f"pins:\n  other:\n    release: '{release}'\n"
    (toy.folder / "pack.yaml").write_text(text.replace("pins:\n", pin))
    toy.publish(source, key="d" * 64, label=f"toyup {release}")
    asked = {"at": "other", "arm": "pristine"}
    run = execute(load_pack(toy.folder), Request(**asked), toy.store, lambda arm, line: None)
    run.started = datetime.datetime(DAY.year, DAY.month, DAY.day, 10, tzinfo=datetime.UTC)
    receipts.write(run, toy.root / "receipts", "bench", [], {str(toy.root): "<toy>"})
    (toy.folder / "pack.yaml").write_text(text)
    return pack


def test_the_newest_release_is_asked_for_an_issue(desk):
    write_tree(desk.folder, {"pack.yaml": record(filing={"decision": "issue", "reason": "nobody reports it"})})
    point = points(desk, "issue")["newest release"]
    assert point.result == "pass" and "not asked" in point.what  # 1.0, the newest that is known
    named = checklist.judge("pack07", "issue", DAY, newest="1.5")
    (point,) = [point for point in named.points if point.name == "newest release"]
    assert point.result == "fail" and point.remedy.startswith("python -m reproducers.sweep pack07 --newest 1 ")
    tried(desk, "1.5", SOURCE)
    assert points(desk, "issue")["newest release"].result == "pass"


@pytest.mark.parametrize("form", ["issue", "pr", "comment"])
def test_a_healthy_newest_release_stands_against_an_issue_or_a_pull_request(desk, form):
    write_tree(desk.folder, {"pack.yaml": record(filing={"decision": "issue", "reason": "nobody reports it"})})
    tried(desk, "1.5", edited(TOTAL, FIRST))
    found = points(desk, form)
    assert found["newest release"].result == ("pass" if form == "comment" else "fail")
    assert ("fixed upstream" in found) == (form != "comment")
    if form == "issue":
        faults = examine([load_pack(desk.folder)], desk.root / "receipts", desk.root / "store", DAY).faults
        assert "filing-fixed" in {fault.rule for fault in faults}
