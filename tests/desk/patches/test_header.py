"""The exported header is made from records and refused where they are wrong; git and Python's email parser read it."""

import datetime
import email
import email.policy
import subprocess
import tomllib

import pytest
import yaml
from toy import FIRST, HEAD, RECORD, REPRODUCER, THREAD, TOTAL, Toy, edited

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.desk.patches import header as header_module
from reproducers.desk.patches import mail as patch_mail
from reproducers.desk.patches.fields import target
from reproducers.desk.patches.header import header, mail
from reproducers.desk.patches.tried import git
from reproducers.evidence import manifest, receipts
from reproducers.record.schema import ROOT, Pin, load_pack, load_packs

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


def field(made, name):
    """The one value of a header's field."""
    (value,) = [value for written, value in made.trailers if written == name]
    return value


def threads(*some):
    return {"upstream_state__threads": list(some), "upstream_state__search__found": "threads"}


def read_by_git(folder, data):
    """({mail header: value}, message, trailers) of a mail as ``git am`` and ``git interpret-trailers`` read it."""
    command = ["git", "mailinfo", "message", "patch"]
    done = subprocess.run(command, cwd=folder, input=data, capture_output=True, check=True)
    about = dict(line.split(": ", 1) for line in done.stdout.decode().splitlines() if line)
    rows = git(folder, "interpret-trailers", "--parse", "message").stdout.splitlines()
    return about, (folder / "message").read_text(), [tuple(row.split(": ", 1)) for row in rows]


@pytest.mark.parametrize(("pack", "pin"), EXPORTED, ids=lambda x: getattr(x, "id", x))
def test_git_reads_what_was_written_of_every_pack(pack, pin, tmp_path):
    entry = ENTRIES[pack.id]
    try:
        name, data = mail(pack, pin, entry, ROOT / "receipts")
    except PatchlaneError as refused:
        unproved = "Validated: " in refused.what and (pin != "live" or "is of another patch" in refused.what)
        if "has no receipt of its reproducer" not in refused.what and not unproved:
            raise
        pytest.skip(str(refused))
    assert (name, data) == mail(pack, pin, entry, ROOT / "receipts")
    expected = header(pack, pin, entry, ROOT / "receipts")
    about, message, trailers = read_by_git(tmp_path, data)
    assert (about["Subject"], trailers) == (expected.short.fields["Subject"], expected.trailers)
    assert all(len(line) <= 75 or len(line.split()) <= 2 for line in message.splitlines())
    assert expected.short.diff.rstrip(b"\n") in data


def test_a_mail_has_sender_day_and_message(made, tmp_path):
    _, text = made("mail")
    parsed = email.message_from_bytes(text.encode(), policy=email.policy.default)
    assert parsed["Subject"] == "[PATCH] sum all values"
    assert parsed["From"] == "patchlane <patchlane@patchlane.invalid>"
    assert parsed["Date"].datetime == datetime.datetime(2026, 11, 20, 8, 30, tzinfo=datetime.UTC)
    about, message, _ = read_by_git(tmp_path, text.encode())
    assert "Why: é." in message and parsed.get_content().startswith(message)
    assert (about["Author"], about["Email"]) == ("patchlane", "patchlane@patchlane.invalid")
    assert about["Date"].startswith("Fri, 20 Nov 2026 08:30:00")
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
    _, message, _ = read_by_git(tmp_path, text.encode())
    assert git(tmp_path, "log", "-1", "--format=%B").stdout.strip() == f"sum all values\n\n{message}".strip()


@pytest.mark.parametrize(
    ("changed", "status"),
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
def test_upstream_status(made, changed, status):
    assert field(made(**changed)[1], "Upstream-Status") == status


@pytest.mark.parametrize(
    ("changed", "thread"),
    [
        ({}, "none known"),
        ({"filing__thread": URL}, URL),
        ({"filing__thread": URL, **threads(MERGED | {"relation": "reports it"})}, MERGED["url"]),
        (threads(THREAD | {"url": "https://github.com/other/repo/issues/1"}, THREAD), URL),
    ],
)
def test_bug(made, changed, thread):
    assert field(made(**changed)[1], "Bug") == thread


def refused(make, **changed):
    """The fields that an error names, one a line."""
    with pytest.raises(PatchlaneError) as caught:
        make(**changed)
    assert caught.value.remedy
    return [row.split(": ")[1] for row in caught.value.what.splitlines()]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"filing__thread": "https://github.com/toy/toyup/wiki"}, "Bug"),
        ({"remove_when": " "}, "Remove-When"),
        ({"review_by": datetime.date(2026, 11, 20)}, "Review-By"),
        ({"upstream__licence": ""}, "Licence"),
        (
            {
                "upstream_state__filed": "pr",
                "upstream_state__filed_url": "https://example.org/1",
                "upstream_state__filed_on": datetime.date(2026, 11, 24),
            },
            "Upstream-Status",
        ),
    ],
)
def test_a_record_that_no_header_can_state_is_refused_by_field(made, changed, name):
    assert refused(made, **changed) == [name]


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("Why", "As", ["Validated"]),  # as any change of the patch after its receipt
        ("Subject: sum", "Subject: [sum]", ["Subject", "Validated"]),
        ("written for patchlane", "by someone", ["Origin", "Validated"]),
    ],
)
def test_a_patch_that_no_header_can_state_is_refused_by_field(made, proved, old, new, names):
    pack, _ = made()
    before = pack.patch.read_text()
    assert before.count(old) == 1
    pack.patch.write_text(before.replace(old, new))
    try:
        assert refused(made) == names
    finally:
        pack.patch.write_text(before)


def test_a_receipt_that_proves_no_fix_is_refused(made, monkeypatch):
    ineffective = {"verdict": Verdict.FIX_INEFFECTIVE}
    monkeypatch.setattr(header_module, "read", lambda path: receipts.read(path).model_copy(update=ineffective))
    assert refused(made) == ["Validated"]


def test_a_reproducer_or_manifest_that_is_not_the_receipts_is_refused(made, proved):
    pack, _ = made()
    entry = manifest.entry_of(pack, proved.root / "receipts")
    with pytest.raises(PatchlaneError) as caught:
        header(pack, "live", entry.model_copy(update={"lanes": {}}), proved.root / "receipts")
    assert caught.value.remedy == "python -m reproducers.manifest refresh"
    pack.reproducer.write_text(REPRODUCER + "\n")
    try:
        with pytest.raises(PatchlaneError) as caught:
            made()
        assert caught.value.remedy.startswith("python -m reproducers.run pack07 --at live, then ")
    finally:
        pack.reproducer.write_text(REPRODUCER)


def test_no_patch_and_no_receipt_are_told_apart(made, proved, tmp_path):
    pack, _ = made(pins__fixed={"sha": "b" * 40})
    entry = manifest.entry_of(pack, tmp_path)
    for pin in ("fixed", "nowhere"):
        with pytest.raises(PatchlaneError) as caught:
            header(pack, pin, entry, tmp_path)
        assert pin in caught.value.what and caught.value.remedy.endswith(": live")
    with pytest.raises(PatchlaneError) as caught:
        header(pack, "live", entry, tmp_path)
    assert caught.value.remedy.startswith("python -m reproducers.run pack07 --at live, then ")


@pytest.mark.parametrize(
    "claim", ["diff -u shows it", "Index: the sum", "---", "Subject: sums", "From here on it is wrong"]
)
def test_a_message_that_git_would_cut_is_refused(made, claim):
    with pytest.raises(PatchlaneError) as caught:
        made("mail", claim=claim)
    assert claim.startswith(caught.value.what.split("'")[1])


def test_a_series_is_numbered(made, proved):
    pack, _ = made()
    entry = manifest.entry_of(pack, proved.root / "receipts")
    name, data = mail(pack, "live", entry, proved.root / "receipts", 2, 3)
    assert name == "0002-sum-all-values.patch" and b"\nSubject: [PATCH 2/3] sum all values\n" in data


def test_a_subject_in_other_letters_survives(tmp_path):
    when = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
    data = patch_mail.compose("[PATCH] sum → all", when, "Pack: 07\n", b"")
    assert read_by_git(tmp_path, data)[0]["Subject"] == "sum → all"


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        ({"release": "1.0", "sha": "a" * 40}, f"toyup 1.0 ({'a' * 40})"),
        ({"sha": "a" * 40}, f"toyup git ({'a' * 40})"),
        ({"release": "1.0"}, f"toyup 1.0 (sha256:{'b' * 64})"),
        ({"release": "1.0", "sha": "a" * 40, "stacked_on": [2]}, f"toyup 1.0 ({'a' * 40}) after pack 02"),
        ({"release": "1.0", "sha": "a" * 40, "stacked_on": [2, 7]}, f"toyup 1.0 ({'a' * 40}) after packs 02, 07"),
    ],
)
def test_a_pin_is_named_by_release_and_sha_or_digest(made, pin, expected):
    files = {"y.whl": "c" * 64, "x.whl": "b" * 64} if "release" in pin else {}
    assert target(made()[0], Pin(artifacts=files, **pin)) == expected


def test_the_version_line_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"patchlane {project['version']}" == patch_mail.VERSION
