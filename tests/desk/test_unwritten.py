"""Files that a new pack leaves to a person: every verb that publishes refuses them by pack, file, line and field."""

import pytest
from toy import HEAD, RECORD, edited
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from reproducers import export, lint, manifest, render, site
from reproducers.base.verdicts import Verdict
from reproducers.desk import unwritten
from reproducers.desk.patches import header
from reproducers.desk.text import dossier
from reproducers.evidence.manifest import entry_of
from reproducers.record import schema


@pytest.fixture
def draft(toy, monkeypatch):
    """A toy whose title, review and claim in the reproducer are not written; for the verbs it is the project."""
    monkeypatch.setattr(schema, "ROOT", toy.root)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    for module in (manifest, render, site):
        monkeypatch.setattr(module, "ROOT", toy.root)
    record = RECORD.replace("title: total forgets the first value", "title: <write what a user meets>")
    pack = toy.pack(record=record.replace("reason: a toy\nremove", "reason: >-\n    <write why>\nremove"))
    pack.reproducer.write_text(pack.reproducer.read_text().replace('"""Toy claim', '"""<write the claim>'))
    return pack


def test_places_have_file_line_and_field(draft):
    rows = unwritten.left(draft)
    assert [row.rpartition(": <")[0] for row in rows] == [
        "07_toy/pack.yaml:3: title",
        "07_toy/pack.yaml:31: reason",
        "07_toy/reproducer.py:1",
    ]


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (manifest.app, ["refresh", "--no-import"]),
        (manifest.app, ["check"]),
        (site.app, ["--out", "OUT"]),
        (render.app, ["pack07"]),
        (render.app, ["pack07", "--out", "OUT"]),
        (export.app, ["pack07"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_verb_that_publishes_refuses_it(draft, toy, app, words):
    done = CliRunner().invoke(app, [word.replace("OUT", str(toy.root / "out")) for word in words])
    assert isinstance(done.exception, PatchlaneError), done.output
    assert done.exception.exit_code == Exit.USAGE and "pack07 is not written yet: 07_toy/" in done.exception.what
    assert "python -m reproducers.lint pack07" in done.exception.remedy
    assert not (toy.root / "manifest.yaml").exists() and not list((toy.root / "out").glob("*"))


def test_what_is_posted_or_sent_is_refused(draft, toy):
    entry = entry_of(draft, toy.root / "receipts")
    for make in (
        lambda: dossier.files(draft, toy.root / "receipts", "issue"),
        lambda: header.header(draft, "live", entry, toy.root / "receipts"),
    ):
        with pytest.raises(PatchlaneError, match="pack07 is not written yet"):
            make()


def test_a_draft_can_be_run_and_looked_through(draft, toy):
    assert toy.run(draft).ruling.verdict is Verdict.REPRODUCED_AND_FIXED
    done = CliRunner().invoke(lint.app, ["pack07"])
    assert done.exit_code == Exit.CONTRADICTED and "pack-unwritten" in done.output


def test_a_written_pack_is_not_refused(toy):
    unwritten.refuse([toy.pack(HEAD + toy.patch(edited()))])
