"""A person's yes: given to exactly what was read, recorded whole or not at all, and void after any change."""

import datetime
import os
import shutil
import sys
from pathlib import Path

import pytest
import typer
import yaml
from ready import BODY, DAY, edit, points, receipt, record
from toy import THREAD, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from reproducers import approve
from reproducers.desk.gate import approval
from reproducers.desk.rules.engine import examine
from reproducers.desk.text import dossier
from reproducers.evidence import manifest
from reproducers.record.schema import load_pack, load_packs

PERSON = "Jane Doe"
AT_TERMINAL = approve.at_terminal
OTHER = THREAD | {"url": THREAD["url"] + "1", "looked_up": DAY}


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """Somebody is at a terminal, but where a test is about that."""
    monkeypatch.setattr(approve, "at_terminal", lambda command: None)


def verb(*args, form="comment", name=PERSON, digest=""):
    """The verb, with what is typed."""
    return CliRunner().invoke(approve.app, ["pack07", "--as", form, *map(str, args)], input=f"{name}\n{digest}\n")


def digest_of(desk, form="comment"):
    return dossier.digest(dossier.files(load_pack(desk.folder), desk.root / "receipts", form))


def approved(desk, form="comment"):
    """The approval of the pack as it is."""
    done = verb(digest=digest_of(desk, form)[:8], form=form)
    assert done.exit_code == 0, (done.output, done.exception)
    return approval.read(load_pack(desk.folder))


def recorded(desk):
    return (desk.folder / "approval.yaml").exists()


def test_the_files_that_were_read_are_recorded(desk):
    folder = desk.root / "to-read"
    done = verb("--read", folder, digest=digest_of(desk)[:8].upper())
    assert done.exit_code == 0, (done.output, done.exception)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == dossier.files(load_pack(desk.folder), desk.root / "receipts", "comment")
    record = yaml.safe_load((desk.folder / "approval.yaml").read_text())
    assert list(record) == ["schema_version", "form", "name", "date", "digest", "files"]
    assert (record["form"], record["name"], record["date"]) == ("comment", PERSON, DAY)
    assert record["digest"] == digest_of(desk) and record["files"] == dossier.sums(files)
    assert f" {folder}:" in done.output and "  comment.md\n" in done.output
    point = points(desk)["approval"]
    assert (point.result, point.what) == ("pass", f"Jane Doe on 2026-11-24, digest {digest_of(desk)[:8]}")


def test_the_folder_is_named_by_form_and_digest_unless_given(desk):
    verb(digest="no")
    (folder,) = (desk.root / "build" / "filing").iterdir()
    assert folder.name == f"pack07-comment-{digest_of(desk)[:8]}" and (folder / "comment.md").is_file()


@pytest.mark.parametrize("typed", ["00000000", "{7}", "{8}0000"])
def test_a_wrong_digest_is_refused(desk, typed):
    digest = digest_of(desk)
    given = typed.replace("{7}", digest[:7]).replace("{8}", digest[:8])
    done = verb(digest=given)
    assert isinstance(done.exception, approve.Refused) and done.exception.exit_code == 1
    assert not recorded(desk)


def test_without_an_answer_nothing_is_recorded(desk):
    assert verb().exit_code == 1 and not recorded(desk)


@pytest.mark.parametrize("args", [[], ["--name", PERSON], ["--digest", "0" * 8]])
def test_a_script_cannot_approve(desk, args, monkeypatch):
    monkeypatch.setattr(approve, "at_terminal", AT_TERMINAL)
    done = CliRunner().invoke(approve.app, ["pack07", "--as", "comment", *args], input=f"{PERSON}\n{digest_of(desk)}\n")
    assert done.exit_code == 2 or done.exception.exit_code == 2
    assert not recorded(desk) and not (desk.root / "build").exists()
    if not args:
        assert done.exception.remedy == "in a terminal: python -m reproducers.approve pack07 --as comment"


def test_a_form_that_there_is_not_is_told_before_a_terminal_is_wanted(desk, monkeypatch):
    monkeypatch.setattr(approve, "at_terminal", AT_TERMINAL)
    done = CliRunner().invoke(approve.app, ["7", "--as", "letter"])
    assert isinstance(done.exception, PatchlaneError) and done.exception.remedy.startswith("--as ")


def test_a_person_at_a_terminal_can(desk, monkeypatch):
    monkeypatch.setattr(approve, "at_terminal", AT_TERMINAL)
    keyboard, terminal = os.openpty()
    os.write(keyboard, f"{PERSON}\n{digest_of(desk)[:8]}\n".encode())
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        approve.app(["pack07", "--as", "comment"], standalone_mode=False)
    os.close(keyboard)
    assert approval.read(load_pack(desk.folder)).name == PERSON


def test_a_change_while_the_files_are_read_is_refused(desk, monkeypatch):
    def prompt(text, **options):
        if "name" in text:
            return PERSON
        digest = digest_of(desk)
        edit(desk.folder / "body.md.j2", "second value", "second value, not the first,")
        return digest

    monkeypatch.setattr(typer, "prompt", prompt)
    done = verb()
    assert isinstance(done.exception, approve.Refused) and not recorded(desk)


@pytest.mark.parametrize(
    ("change", "point"),
    [
        (lambda desk: shutil.rmtree(desk.root / "store" / "trees"), "text: "),
        (lambda desk: write_tree(desk.folder, {"notes.md": "/home/mallory/x\n"}), "no private words: "),
        (lambda desk: write_tree(desk.folder, {"pack.yaml": record(filing__decision="hold")}), "decision: hold"),
        (lambda desk: write_tree(desk.folder, {"pack.yaml": record(filing__decision="issue")}), "decision: "),
        (lambda desk: write_tree(desk.folder, {"body.md.j2": "{{"}), "reproducer attached: "),
    ],
)
def test_a_pack_that_is_not_ready_is_not_approved(desk, change, point):
    change(desk)
    done = verb()
    assert isinstance(done.exception, approve.Refused) and f"\n{point}" in str(done.exception)
    assert not recorded(desk)


def test_an_older_receipt_is_not_approved(desk, monkeypatch):
    monkeypatch.setattr(approve, "today", lambda: DAY + datetime.timedelta(days=1))
    done = verb(digest=digest_of(desk))
    assert isinstance(done.exception, approve.Refused) and "\nreproduced today: " in str(done.exception)
    assert not recorded(desk)


@pytest.mark.parametrize(
    "name",
    ["", " ", "Jane", "jane@toy.io Doe", "patchlane", "Patchlane Project", "R2 D2", "Jane Doe\x07", "A " * 60, "- -"],
)
def test_only_a_persons_full_name_is_taken(desk, name):
    done = verb(name=name, digest=digest_of(desk))
    assert isinstance(done.exception, PatchlaneError) and done.exception.exit_code == 2
    assert "full name" in done.exception.remedy and not recorded(desk)


@pytest.mark.parametrize("name", ["Jane Doe", "Åsa Öberg-Núñez", "李 小龙", "Mary  O'Neil Jr."])
def test_names_are_kept_as_they_are(desk, name):
    assert verb(name=name, digest=digest_of(desk)).exit_code == 0
    assert approval.read(load_pack(desk.folder)).name == " ".join(name.split())


def test_a_folder_that_holds_other_files_is_left_alone(desk):
    write_tree(desk.root / "taken", {"thesis.md": "mine"})
    done = verb("--read", desk.root / "taken", digest=digest_of(desk))
    assert done.exception.exit_code == 2 and done.exception.remedy.startswith("--read ")
    assert [path.name for path in (desk.root / "taken").iterdir()] == ["thesis.md"] and not recorded(desk)


def test_a_folder_that_cannot_be_written(desk):
    done = verb("--read", desk.folder / "pack.yaml" / "x")
    assert done.exception.exit_code == 2 and done.exception.remedy.startswith("--read")


def test_a_form_that_the_pack_cannot_take(desk):
    done = verb(form="letter")
    assert done.exception.exit_code == 2 and done.exception.remedy == "--as issue or pr or comment"


# What voids it


def later_receipt(desk):
    receipt(desk, load_pack(desk.folder), hour=10)


def changed(name, old, new):
    return lambda desk: edit(desk.folder / name, old, new)


def proved_again(name, old, new):
    def change(desk):
        edit(desk.folder / name, old, new)
        later_receipt(desk)

    return change


@pytest.mark.parametrize(
    ("form", "change", "why"),
    [
        ("comment", changed("body.md.j2", "second value", "value after it"), "comment.md changed"),
        ("comment", later_receipt, "pack07.log changed"),
        ("comment", changed("fix.patch", "do not forget", "take"), "pack07.patch changed"),
        ("comment", changed("reproducer.py", "refuses an", "refuses any"), "pack07.py changed"),
        ("comment", proved_again("reproducer.py", "refuses an", "refuses any"), "pack07.py changed"),
        ("issue", changed("pack.yaml", "title: total forgets", "title: sum forgets"), "title.txt changed"),
    ],
)
def test_any_change_voids_it(desk, form, change, why):
    write_tree(desk.folder, {"pack.yaml": record(filing__decision=form)})
    approved(desk, form)
    change(desk)
    point = points(desk, form=form)["approval"]
    assert point.result == "fail" and point.what.startswith("Jane Doe") and why in point.what
    assert point.remedy == f"python -m reproducers.approve pack07 --as {form}"


def test_another_thread_voids_it(desk):
    approved(desk)
    threads = {"upstream_state__threads": [OTHER], "filing__thread": OTHER["url"]}
    write_tree(desk.folder, {"pack.yaml": record(**threads)})
    assert "title.txt changed" in points(desk)["approval"].what


def test_another_form_voids_it(desk):
    approved(desk)
    assert points(desk, form="issue")["approval"].result == "fail"
    form, *files = reasons(desk, form="issue")
    assert " comment, " in form and [why.split()[0] for why in files] == ["comment.md", "issue.md", "title.txt"]


def reasons(desk, form="comment", day=DAY):
    """Why the recorded approval is void."""
    pack = load_pack(desk.folder)
    files = dossier.files(pack, desk.root / "receipts", form)
    return approval.changes(approval.read(pack), form, files, dossier.digest(files), day)


def test_a_day_before_it_was_given(desk):
    approved(desk)
    (why,) = reasons(desk, day=DAY - datetime.timedelta(days=1))
    assert "2026-11-24" in why and "2026-11-23" in why and reasons(desk) == []


def test_a_digest_that_is_not_its_files(desk):
    given = approved(desk)
    edit(desk.folder / "approval.yaml", given.digest, "f" * 64)
    assert points(desk)["approval"].result == "fail" and len(reasons(desk)) == 1


def test_an_approval_holds_again_after_a_change_is_taken_back(desk):
    approved(desk)
    write_tree(desk.folder, {"body.md.j2": BODY.replace("second", "next")})
    assert points(desk)["approval"].result == "fail"
    write_tree(desk.folder, {"body.md.j2": BODY})
    assert points(desk)["approval"].result == "pass"


def test_a_text_that_is_gone_cannot_be_approved_any_more(desk):
    approved(desk)
    write_tree(desk.folder, {"body.md.j2": "{{"})
    point = points(desk)["approval"]
    assert point.result == "fail" and "07_toy/body.md.j2" in point.what


def test_a_new_approval_replaces_a_void_one(desk):
    approved(desk)
    edit(desk.folder / "body.md.j2", "second value", "next value")
    approved(desk)
    assert points(desk)["approval"].result == "pass"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "approval.yaml:"),
        ("", "approval.yaml:1"),
        ("- 1\n", "approval.yaml:1"),
        ("form: letter\n", "form: "),
        ("name: x@toy.io\n", "approval.yaml:1: name: "),
        ("schema_version: 2\n", "schema_version: "),
        ("files: {}\n", "files: "),
        (b"\xff\xfe\x00", "approval.yaml: "),
    ],
)
def test_a_malformed_record_is_a_fail_with_a_remedy(desk, text, place):
    (desk.folder / "approval.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    point = points(desk)["approval"]
    assert point.result == "fail" and place in point.what and point.remedy


def test_the_rest_of_the_project_does_not_mind_it(desk):
    def judged():
        packs, root = load_packs(desk.packs), desk.root / "receipts"
        return [pack.model_dump() for pack in packs], manifest.build(packs, root), lint(packs)

    def lint(packs):
        return examine(packs, desk.root / "receipts", desk.root / "store", DAY)

    before = judged()
    approved(desk)
    assert judged() == before and recorded(desk)
    assert [Path(path).name for path in desk.folder.glob("*.yaml")].count("approval.yaml") == 1
