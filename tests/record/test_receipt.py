"""Receipts as records: each version is read, what is written is the same bytes, sentences are read nowhere else."""

import json

import pytest
from toy import body

from patchlane.base.files import record_bytes
from reproducers.evidence import receipts, shelf
from reproducers.evidence.receipts import write
from reproducers.evidence.verification import verify_all
from reproducers.kept import archive
from reproducers.record.receipt import ARMS, RAISED, Check, Signature, Statement, record_of, stamp_of
from reproducers.record.schema import ROOT

SHA = "a" * 40


def plain(statement):
    """As it is written, without what was lifted out of its sentences."""
    written = statement.as_json()
    for arm in ARMS if statement.details.schema_version < 3 else ():
        for result in written["predicate"]["patchlane"].get(arm, []):
            for check in result["checks"]:
                check.pop("bug_above", None), check.pop("signature", None)
    return json.dumps(written, indent=1, sort_keys=True) + "\n"


def test_every_committed_receipt_is_written_as_it_was_read():
    paths = shelf.every(ROOT / "receipts")
    texts = {path.name: archive.data(path) for path in paths}
    assert texts and [name for name, text in texts.items() if plain(Statement.of(text)).encode() != text] == []


def test_the_committed_folders_hold_records_and_archives_alone():
    folders = [path for path in (ROOT / "receipts").glob(shelf.FOLDERS) if path.is_dir()]
    names = [path.name for folder in folders for path in folder.iterdir()]
    records = {name for name in names if name.startswith(("2", *shelf.WITHOUT_LOG)) and not name.endswith(".lock")}
    assert records and {*names} - records <= {archive.INDEX, archive.TAR}


def test_what_is_written_has_fields_for_what_a_check_and_a_tree_are(toy):
    path = write(toy.run(toy.pack()), toy.root / "receipts", "toy", [], {})
    data = json.loads(path.read_text())
    total, first, guard, _ = data["predicate"]["patchlane"]["pristine"][0]["checks"]
    crash = {"exception": "ValueError", "message": "^empty is not", "frame": "toyup/core.py"}
    assert (total["bug_above"], total["signature"]) == (0.5, None)
    assert (first["bug_above"], first["signature"]) == (None, crash)
    assert (guard["bug_above"], guard["signature"]) == (None, None)
    tree = {"kind": "release", "distribution": "toyup", "release": "1.0"}
    assert data["subject"][0] == {"name": "toyup 1.0", "digest": data["subject"][0]["digest"], "annotations": tree}
    assert plain(Statement.of(path.read_bytes())) == path.read_text()


def test_numbers_that_are_none_keep_their_statement_whole(toy):
    code = "p.note('a', float('nan'))\np.error('b', float('inf'), 1, reference='none', bug_above=2)"
    path = write(toy.run(toy.pack(reproducer=body(code))), toy.root / "receipts", "toy", [], {})
    assert verify_all(toy.root / "receipts") == {}
    assert plain(Statement.of(path.read_bytes())) == path.read_text()


def test_what_is_no_text_is_written_as_a_question_mark(toy):
    code = "p.quiet = True\np.note('a', '\\udcff \\u00e9')\nraise probe.CannotTest('no')"
    path = write(toy.run(toy.pack(reproducer=body(code))), toy.root / "receipts", "toy", ["\udcff"], {})
    details = receipts.read(path)
    assert ([check.measured for check in details.checks("pristine")], details.command) == (["? \u00e9"], ["?"])
    assert verify_all(toy.root / "receipts") == {}


def early(**check):
    """The record of an arm of schema_version 2 with one check."""
    whole = {"name": "a", "role": "bug", "state": "bug", "measured": 1, "limit": 0, "reference": "", "unit": ""}
    record = {"patchlane": "record", "outcome": "bug", "reason": "a", "remedy": "", "sentinel": None, "executed": {}}
    return json.dumps(record | {"checks": [whole | {"detail": ""} | check]})


@pytest.mark.parametrize(
    ("check", "above", "signature"),
    [
        ({"detail": "bug at or over 1e-05"}, 1e-5, None),
        ({"detail": "bug at or over 0.5"}, 0.5, None),
        ({"detail": "needs a GPU"}, None, None),
        ({"limit": "no exception"}, None, None),
        ({"limit": "no E /a from b/ from c/d.py"}, None, Signature(exception="E", message="a from b", frame="c/d.py")),
        ({"limit": "no E /a\nb/ from c.py"}, None, Signature(exception="E", message="a\nb", frame="c.py")),
    ],
)
def test_sentences_of_early_receipts_become_fields(check, above, signature):
    (lifted,) = record_of(early(**check), 2).checks
    assert (lifted.bug_above, lifted.signature) == (above, signature)
    (as_now,) = record_of(early(**check), 3).checks
    assert (as_now.bug_above, as_now.signature) == (None, None)


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("toyup 1.0", {"kind": "release", "distribution": "toyup", "release": "1.0"}),
        ("mamba-ssm 2.3.2.post1", {"kind": "release", "distribution": "mamba-ssm", "release": "2.3.2.post1"}),
        (f"git {SHA}", {"kind": "commit", "sha": SHA}),
        (f"toyup git {SHA}", {"kind": "commit", "distribution": "toyup", "sha": SHA}),
        (f"git {SHA} (dirty)", {"kind": "commit", "sha": SHA, "dirty": True}),
        ("folder my clone", {"kind": "folder", "name": "my clone"}),
        (
            "toyup 1.0 + 02_a_b + 13_c",
            {"kind": "release", "distribution": "toyup", "release": "1.0"} | {"stacked_on": (2, 13)},
        ),
        ("pack07", None),
    ],
)
def test_names_of_trees_in_early_receipts_become_origins(toy, name, origin):
    path = write(toy.run(toy.pack()), toy.root / "receipts", "toy", [], {})
    data = json.loads(path.read_text())
    data["subject"][0] = {"name": name, "digest": data["subject"][0]["digest"]}
    data["predicate"]["patchlane"]["schema_version"] = 2
    statement = Statement.of(record_bytes(data))
    lifted = statement.tree.annotations
    assert (lifted and lifted.model_dump(exclude_defaults=True)) == origin
    assert "annotations" not in statement.as_json()["subject"][0]


@pytest.mark.parametrize("data", [b"{}", b"[]", b"1", b"{", b'{"predicate": {"patchlane": {"schema_version": 9}}}'])
def test_what_is_no_statement_is_a_value_error(data):
    with pytest.raises(ValueError):
        Statement.of(data)


def test_a_field_that_nobody_knows_is_a_fault(toy):
    path = write(toy.run(toy.pack()), toy.root / "receipts", "toy", [], {})
    data = json.loads(path.read_text())
    data["predicate"]["patchlane"]["mood"] = "good"
    with pytest.raises(ValueError, match="mood"):
        Statement.of(record_bytes(data))


@pytest.mark.parametrize("line", ["", "x", "1", "null", '{"patchlane": "record"}', '{"patchlane": "stamp"}', "[{}]"])
def test_a_line_that_is_neither_stamp_nor_record(line):
    assert (stamp_of(line), record_of(line), record_of(line, 1)) == (None, None, None)


def test_the_limit_that_the_probe_writes_is_the_one_that_was_parsed():
    """So long as early receipts are read, the form of that sentence is one."""
    assert RAISED.fullmatch("no ValueError /^empty is not/ from toyup/core.py")


def test_a_check_with_a_number_and_a_finite_limit_can_be_drawn():
    def numeric(measured, limit):
        return Check(name="a", role="bug", state="bug", measured=measured, limit=limit).numeric

    assert numeric("nan", 0) and numeric(1, 2.0)
    others = [("x", 1), (1, None), ("1", 2), (1, "inf"), (None, 1), (1, "no exception")]
    assert not any(numeric(*pair) for pair in others)
