"""The exported header: made from records, read back, constrained; the mail as git and Python's email parser read it."""

import datetime
import email
import email.policy
import re
import subprocess
import tomllib

import pytest
import yaml
from toy import FIRST, HEAD, RECORD, REPRODUCER, THREAD, TOTAL, Toy, edited

from reproducers.base.errors import PatchlaneError
from reproducers.desk.patches import mail as patch_mail
from reproducers.desk.patches.fields import Evidence, Status, Target
from reproducers.desk.patches.header import header, mail, parse
from reproducers.desk.patches.tried import git
from reproducers.evidence import manifest, receipts
from reproducers.record.schema import ROOT, load_pack, load_packs

PACKS = load_packs()
ENTRIES = manifest.build(PACKS, ROOT / "receipts")
EXPORTED = [
    (pack, pin)
    for pack in PACKS
    for pin in pack.pins
    if pack.patch_at(pin) and not pack.healthy_at(pin) and receipts.newest_of(pack, ROOT / "receipts", pin)
]
SHORT = HEAD + "Why: é.\n\n"
MERGED = THREAD | {"relation": "fixes it", "state": "merged", "url": "https://github.com/toy/toyup/pull/9"}
ELSEWHERE = f"Inappropriate [fixed upstream by another change: {MERGED['url']}]"
URL = THREAD["url"]


def record(**changed):
    """The toy's record, to be filed as a pull request; dotted keys are written A__B."""
    values = yaml.safe_load(RECORD)
    for name, value in {"filing__decision": "pr", **changed}.items():
        *path, last = name.split("__")
        place = values
        for key in path:
            place = place[key]
        place[last] = value
    return yaml.safe_dump(values)


@pytest.fixture(scope="module")
def proved(tmp_path_factory):
    """A toy pack with a receipt of its patch at the live pin."""
    toy = Toy(tmp_path_factory.mktemp("toy"))
    pack = toy.pack(SHORT + toy.patch(edited(TOTAL, FIRST)), REPRODUCER, record())
    run = toy.run(pack)
    run.request = run.request.__class__(**{**run.request.__dict__, "upstream": None})
    run.started = datetime.datetime(2026, 11, 20, 8, 30, tzinfo=datetime.UTC)
    receipts.write(run, toy.root / "receipts", "toy", [], {})
    return toy


@pytest.fixture
def made(proved):
    """``made(**changed)``: (pack, header) with another record; ``of="mail"`` the mail's text instead."""

    def make(of=None, **changed):
        (proved.folder / "pack.yaml").write_text(record(**changed))
        pack = load_pack(proved.folder)
        entry = manifest.entry_of(pack, proved.root / "receipts")
        place = proved.root / "receipts"
        return pack, mail(pack, "live", entry, place)[1].decode() if of else header(pack, "live", entry, place)

    return make


def threads(*some):
    return {"upstream_state__threads": list(some), "upstream_state__search__found": "threads"}


@pytest.mark.parametrize(("pack", "pin"), EXPORTED, ids=lambda x: getattr(x, "id", x))
def test_a_real_header_is_read_back_and_the_mail_is_the_same_every_time(pack, pin):
    entry = ENTRIES[pack.id]
    name, data = mail(pack, pin, entry, ROOT / "receipts")
    assert parse(data.decode(), pack, pin) == header(pack, pin, entry, ROOT / "receipts")
    assert (name, data) == mail(pack, pin, entry, ROOT / "receipts")
    diff = pack.patch_at(pin).read_bytes()
    assert diff[diff.index(b"diff --git") :].rstrip(b"\n") in data
    assert all(len(line) <= 75 or len(line.split()) <= 2 for line in message_of(data.decode()).splitlines())


def message_of(text):
    return text.partition("\n\n")[2].partition("\n---\n")[0]


def test_pythons_email_parser_reads_the_same(made):
    pack, text = made("mail")
    found = email.message_from_bytes(text.encode(), policy=email.policy.default)
    assert found["Subject"] == "[PATCH] sum all values"
    assert found["From"] == "patchlane <patchlane@patchlane.invalid>"
    assert found["Date"].datetime == datetime.datetime(2026, 11, 20, 8, 30, tzinfo=datetime.UTC)
    body = found.get_content()
    assert "Why: é." in body
    trailers = email.message_from_string(
        body.partition("\n---\n")[0].rpartition("\n\n")[2], policy=email.policy.compat32
    )
    unfolded = [(name, " ".join(value.split())) for name, value in trailers.items()]
    assert unfolded == parse(text, pack).trailers()


def test_git_mailinfo_reads_the_same(made, tmp_path):
    pack, text = made("mail")
    done = subprocess.run(
        ["git", "mailinfo", "message", "patch"], cwd=tmp_path, input=text.encode(), capture_output=True, check=True
    )
    said = dict(line.split(": ", 1) for line in done.stdout.decode().splitlines() if line)
    assert said["Subject"] == "sum all values" and said["Author"] == "patchlane"
    assert said["Email"] == "patchlane@patchlane.invalid" and said["Date"].startswith("Fri, 20 Nov 2026 08:30:00")
    assert (tmp_path / "message").read_text().strip() == message_of(text).strip()
    parsed = git(tmp_path, "interpret-trailers", "--parse", "message").stdout.splitlines()
    assert [tuple(line.split(": ", 1)) for line in parsed] == parse(text, pack).trailers()
    assert "diff --git" in (tmp_path / "patch").read_text()


def test_a_real_mail_applies_with_git_am_to_a_tree(tmp_path, made, proved):
    _, text = made("mail")
    (tmp_path / "toyup").mkdir()
    for file in ("core.py", "__init__.py"):
        (tmp_path / "toyup" / file).write_bytes((proved.upstream / "toyup" / file).read_bytes())
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        git(tmp_path, *command)
    (tmp_path / "x.patch").write_text(text)
    done = git(tmp_path, "am", "x.patch")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "toyup" / "core.py").read_text() == edited(TOTAL, FIRST)["toyup/core.py"]
    assert git(tmp_path, "log", "-1", "--format=%B").stdout.strip() == f"sum all values\n\n{message_of(text)}".strip()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Pending [to be filed as pr: a toy]"),
        ({"filing__decision": "issue"}, "Pending [to be filed as issue: a toy]"),
        ({"filing__decision": "hold"}, "Inappropriate [held: a toy]"),
        ({"filing__decision": "none"}, "Inappropriate [not filed: a toy]"),
        ({"filing__decision": "comment", "filing__thread": URL, **threads(THREAD)}, f"Pending [offered on {URL}]"),
        (threads(MERGED), ELSEWHERE),
        ({"filing__decision": "hold", **threads(MERGED)}, ELSEWHERE),
        (threads(MERGED | {"state": "closed"}), "Pending [to be filed as pr: a toy]"),
        (
            {
                **threads(MERGED),
                "upstream_state__filed": "pr",
                "upstream_state__filed_url": URL,
                "upstream_state__filed_on": datetime.date(2026, 11, 24),
            },
            f"Submitted [{URL} on 2026-11-24]",
        ),
    ],
)
def test_upstream_status(made, changed, said):
    _, found = made(**changed)
    assert str(found.upstream_status) == said
    assert Status.of(said) == found.upstream_status


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "none known"),
        ({"filing__thread": URL}, URL),
        ({"filing__thread": URL, **threads(MERGED | {"relation": "reports it"})}, MERGED["url"]),
        (threads(THREAD | {"url": "https://github.com/other/repo/issues/1"}, THREAD), URL),
    ],
)
def test_bug(made, changed, said):
    assert made(**changed)[1].bug == said


@pytest.mark.parametrize(
    ("old", "new", "field", "said"),
    [
        ("(aaaa", "(bbbb", "Applies-To", "is not the pack's"),
        ("Licence: Apache-2.0", "Licence: MIT", "Licence", "is not the pack's: Apache-2.0"),
        ("Pack: 07", "Pack: 08", "Pack", "is not the pack's: 7"),
        ("Pending [to be filed as pr: a toy]", "Submitted [upstream]", "Upstream-Status", "Submitted needs the URL"),
        ("Pending [to be filed as pr: a toy]", f"Submitted [{URL}]", "Upstream-Status", "and the day"),
        ("Pending [to be filed as pr: a toy]", "Pending", "Upstream-Status", "is not of the form"),
        ("Pending [to be filed as pr: a toy]", "Backport [soon]", "Upstream-Status", "Backport needs the URL"),
        (
            "Pending [to be filed as pr: a toy]",
            f"Backport [{URL}]",
            "Upstream-Status",
            "pack.yaml has none",
        ),
        ("for patchlane", "by someone", "Origin", "neither patchlane nor"),
        ("Bug: none known", "Bug: soon", "Bug", "the URL of a public thread"),
        ("Remove-When: never\n", "", "Remove-When", "which only a backport's may be"),
        ("Review-By: 2027-11-21", "Review-By: 2026-11-20", "Review-By", "not after the newest receipt"),
        ("on 2026-11-20", "on 2026-11", "Validated", "is not of the form"),
        ("REPRODUCED_AND_FIXED", "FIX_INEFFECTIVE", "Validated", "REPRODUCED_AND_FIXED"),
        ("Subject: [PATCH] sum", "Subject: [PATCH] [sum]", "Subject", "should match"),
    ],
)
def test_a_field_that_contradicts_is_refused_by_line(made, old, new, field, said):
    pack, text = made("mail")
    assert text.count(old) == 1
    with pytest.raises(PatchlaneError, match="Field|" + field) as caught:
        parse(text.replace(old, new), pack)
    lines = text.replace(old, new).splitlines()
    rows = [row for row in str(caught.value).splitlines() if f": {field}: " in row and said in row]
    assert rows, caught.value
    number = int(rows[0].split(":")[0].removeprefix("line "))
    assert lines[number - 1].startswith(f"{field}:") or (field == "Remove-When" and number == 1)


def test_a_receipt_of_another_patch_is_refused(made, proved):
    pack, text = made("mail")
    other = text.replace("Patch: sha256:" + parse(text).patch, "Patch: sha256:" + "0" * 64)
    with pytest.raises(PatchlaneError, match="receipt is of another patch"):
        parse(other)
    before = pack.patch.read_text()
    pack.patch.write_text(before.replace("Why", "As"))
    try:
        with pytest.raises(PatchlaneError, match="Validated: the cpu receipt is of another patch"):
            made()
    finally:
        pack.patch.write_text(before)


def test_a_lane_has_one_receipt(made):
    _, text = made("mail")
    row = text[text.index("Validated: ") : text.index("Licence: ")]
    with pytest.raises(PatchlaneError, match="Validated: one receipt a lane"):
        parse(text.replace(row, row + row))


@pytest.mark.parametrize("subject", ["=?nowhere?q?sum?=", "=?utf-8?b?a?=", "=?utf-8?q?=ff?="])
def test_a_subject_that_no_mail_reader_decodes_is_refused(made, subject):
    _, text = made("mail")
    with pytest.raises(PatchlaneError, match=r"line 4: Subject: "):
        parse(text.replace("sum all values", subject))


def test_a_backport_may_have_no_end_and_name_what_it_takes(made):
    pack, text = made("mail", **threads(MERGED))
    theirs = re.sub(r"Upstream-Status: .*\n( .*\n)*", f"Upstream-Status: Backport [{MERGED['url']}]\n", text)
    other = theirs.replace("Remove-When: never\n", "").replace("written for patchlane", f"from {MERGED['url']}")
    found = parse(other, pack)
    assert found.remove_when == "" and ("Remove-When", "") not in found.trailers()


def test_a_reproducer_or_manifest_that_is_not_the_receipts_is_refused(made, proved):
    pack, _ = made()
    entry = manifest.entry_of(pack, proved.root / "receipts")
    with pytest.raises(PatchlaneError, match=r"manifest lacks the newest cpu receipt\n.*manifest refresh"):
        header(pack, "live", entry.model_copy(update={"lanes": {}}), proved.root / "receipts")
    pack.reproducer.write_text(REPRODUCER + "\n")
    try:
        with pytest.raises(PatchlaneError, match=r"reproducer\.py changed since the cpu receipt"):
            made()
    finally:
        pack.reproducer.write_text(REPRODUCER)


def test_no_patch_and_no_receipt_are_told_apart(made, proved, tmp_path):
    pack, _ = made(pins__fixed={"sha": "b" * 40})
    entry = manifest.entry_of(pack, tmp_path)
    for pin in ("fixed", "nowhere"):
        with pytest.raises(PatchlaneError, match=rf"no patch at pin {pin}\n.*pins with one: live"):
            header(pack, pin, entry, tmp_path)
    with pytest.raises(PatchlaneError, match="has no receipt"):
        header(pack, "live", entry, tmp_path)


@pytest.mark.parametrize(
    "claim", ["diff -u shows it", "Index: the sum", "---", "Subject: sums", "From here on it is wrong"]
)
def test_a_message_that_git_would_cut_is_refused(made, claim):
    with pytest.raises(PatchlaneError, match="git would cut the message"):
        made("mail", claim=claim)


@pytest.mark.parametrize("text", ["", "no mail", "From x\n\nhello\n", "Subject: x\n\nPack: 07\nPack: 07\n---\n"])
def test_what_is_no_exported_patch_is_refused(text):
    with pytest.raises(PatchlaneError, match=r"line 1|line 3|line 4"):
        parse(text)


def test_a_series_is_numbered(made, proved):
    pack, _ = made()
    entry = manifest.entry_of(pack, proved.root / "receipts")
    name, data = mail(pack, "live", entry, proved.root / "receipts", 2, 3)
    assert name == "0002-sum-all-values.patch" and b"\nSubject: [PATCH 2/3] sum all values\n" in data
    assert parse(data.decode(), pack).subject == "sum all values"


def test_a_subject_in_other_letters_survives():
    when = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
    data = patch_mail.compose("[PATCH] sum → all", when, "Pack: 07\n", b"")
    assert patch_mail.fields_of(data.decode())[0]["subject"] == "sum → all"


def test_values_with_parts_are_written_as_they_are_read():
    for text in (
        f"toyup 1.0 ({'a' * 40})",
        f"toyup git ({'a' * 40})",
        f"toyup 1.0 (sha256:{'a' * 64})",
        f"toyup 1.0 ({'a' * 40}) after packs 02, 07",
    ):
        assert str(Target.of(text)) == text
    text = f"cpu REPRODUCED_AND_FIXED on 2026-11-20, receipt sha256:{'a' * 64}, patch sha256:{'b' * 64}"
    assert str(Evidence.of(text)) == text
    for wrong in (f"toyup 1.0 ({'a' * 12})", f"toyup git (sha256:{'a' * 64})", "toyup"):
        with pytest.raises(ValueError, match=r"form|digest of what"):
            Target.of(wrong)


def test_the_version_line_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"patchlane {project['version']}" == patch_mail.VERSION
