"""What the code under test prints, and what lies among receipts, is judged and never obeyed, waited for or fatal."""

import datetime
import os
import shutil

import pytest
from toy import CORE, SOURCE, edited, overwrite

from reproducers.base.errors import PatchlaneError
from reproducers.evidence import heads, receipts, verification
from reproducers.evidence.receipts import write
from reproducers.evidence.verification import verify_all

DEEP = {
    "lists": "[" * 1000,
    "lists, closed": "[" * 1000 + "]" * 1000,
    "mappings": '{"a":' * 1000,
    "mappings as ours begin": '{"patchlane": "record", "checks": ' + '{"a":' * 990 + "1" + "}" * 991,
    "as deep as Python reads": '{"patchlane":' + "[" * 900 + "]" * 900 + "}",
    "a number of 5,000 digits": '{"patchlane": ' + "9" * 5000 + "}",
    "no text": '{"patchlane": "\\ud800"}',
}


@pytest.mark.parametrize("place", ["after the stamp", "before the stamp"])
@pytest.mark.parametrize("line", DEEP.values(), ids=DEEP)
def test_a_printed_line_spoils_neither_its_receipt_nor_the_next_run(toy, line, place):
    pack = toy.pack()
    printed = f"print({line!r}, flush=True)\n"
    core = f"{printed}{CORE}" if place == "after the stamp" else CORE
    if place == "before the stamp":
        overwrite(
            pack.reproducer, pack.reproducer.read_text().replace("from reproducers", f"{printed}\nfrom reproducers")
        )
    patch = toy.patch(edited(("values[1:]:", "values:"), core=core), {**SOURCE, "toyup/core.py": core})
    pack = toy.pack(patch, reproducer=pack.reproducer.read_text())
    root = toy.root / "receipts"
    first = toy.run(pack, {**SOURCE, "toyup/core.py": core})
    write(first, root, "bench", ["pack07"], {})
    assert line in "\n".join(first.log) and verify_all(root) == {}
    honest = toy.run(toy.pack())
    honest.started += datetime.timedelta(seconds=1)
    write(honest, root, "bench", ["pack07"], {})
    assert verify_all(root) == {} and honest.ruling.verdict == "REPRODUCED_AND_FIXED"


def folder(path):
    path.mkdir()


def endless(path):
    path.symlink_to("/dev/zero")


def brackets(path):
    path.write_text("[" * 100_000)


def sparse(path):
    path.touch()
    os.truncate(path, 2**40)


def no_text(path):
    path.write_bytes(b"\xff\xfe{")


ODD = [folder, os.mkfifo, endless, brackets, sparse, no_text]


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize(
    "name",
    [
        "20261121T090000Z_odd_0123456789ab.json",
        "mutation_20261121T090000Z_odd_0123456789ab.json",
    ],
)
def test_what_only_has_a_receipts_name_is_a_fault_with_a_name(toy, name, make):
    pack, root = toy.pack(), toy.root / "receipts"
    write(toy.run(pack), root, "bench", ["pack07"], {})
    odd = root / "07" / name
    make(odd)
    verification._kept.clear()
    assert list(verify_all(root)) == [odd]
    if make in (folder, os.mkfifo, endless):
        with pytest.raises(PatchlaneError, match=name):
            heads.heads(root)
    if name.startswith("2026") and make is not endless:  # a link is named by its aim
        with pytest.raises(PatchlaneError, match=name):
            receipts.statement_of(odd)


@pytest.mark.parametrize("make", [folder, os.mkfifo, endless])
def test_an_odd_log_is_named(toy, make):
    root = toy.root / "receipts"
    path = write(toy.run(toy.pack()), root, "bench", ["pack07"], {})
    log = path.with_suffix(".log")
    log.unlink()
    make(log)
    verification._kept.clear()
    assert [log.name in row for row in verify_all(root)[path]] == [True]
    shutil.rmtree(log) if log.is_dir() else log.unlink()
