"""What the code under test prints, and what lies among receipts, is judged and never obeyed, waited for or fatal."""

import datetime
import json
import math
import os
import shutil

import copies
import forged
import pytest
from tiers import sampled
from toy import CORE, SOURCE, body, edited, overwrite

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.evidence import binding, heads, receipts, shelf, verification
from reproducers.evidence.receipts import write
from reproducers.evidence.verification import verify_all
from reproducers.trial import experiment
from reproducers.trial.experiment import Misused

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
@pytest.mark.parametrize("line", sampled(DEEP.values(), 3, lambda number, _: [*DEEP][number]))
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
    first = toy.ran(pack, {**SOURCE, "toyup/core.py": core})
    write(first, root, "bench", ["pack07"], {})
    assert line in "\n".join(first.log) and verify_all(root) == {}
    honest = toy.ran(toy.pack())
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
    write(toy.ran(pack), root, "bench", ["pack07"], {})
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
    path = write(toy.ran(toy.pack()), root, "bench", ["pack07"], {})
    log = path.with_suffix(".log")
    log.unlink()
    make(log)
    verification._kept.clear()
    assert [log.name in row for row in verify_all(root)[path]] == [True]
    shutil.rmtree(log) if log.is_dir() else log.unlink()


def first(**fields):
    return lambda checks: checks[0].update(fields)


def of(name, **fields):
    return lambda checks: next(check for check in checks if check["name"] == name).update(fields)


MISJUDGED = {  # an arm's checks altered in statement and log alike, its word for them kept
    "far over its limit": ("patched", first(measured=1e30)),
    "just over its limit": ("patched", first(measured=2e-9)),
    "not a number": ("patched", first(measured=math.nan)),
    "not a number, in a word": ("patched", first(measured="nan")),
    "a number in a word": ("patched", first(measured="0.0")),
    "true": ("patched", first(measured=True)),
    "an integer beyond floats": ("patched", first(measured=10**400)),
    "a limit without end": ("patched", first(measured=1e30, limit=math.inf)),
    "a limit that is text": ("patched", first(limit="1e-9")),
    "no limit": ("patched", first(limit=None)),
    "nothing measured": ("patched", first(measured=None)),
    "a bug under its bound": ("pristine", first(measured=0.4)),
    "a bug under its limit": ("pristine", first(measured=0.0)),
    "a bound without end": ("pristine", first(bug_above=math.inf)),
    "a guard over its limit": ("patched", of("mean", measured=1.0)),
    "a call that raised and is healthy": ("patched", of("first", measured="ValueError: empty is not supported")),
    "a call that returned and is the bug": ("pristine", of("first", measured="returned")),
    "a crash without a signature": ("pristine", of("first", signature=None)),
    "a check twice": ("patched", lambda checks: checks.append(dict(checks[0]))),
    "a check left out": ("pristine", lambda checks: checks.clear()),
}


@pytest.mark.parametrize(("arm", "change"), MISJUDGED.values(), ids=MISJUDGED)
def test_a_check_is_what_its_measured_value_and_its_limit_say(toy, arm, change):
    root = toy.root / "receipts"
    path = forged.checks(write(toy.ran(toy.pack()), root, "bench", ["pack07"], {}), change, arm)
    assert list(verify_all(root)) == [path]


STRAYED = {"call": "core.total()", "fact": "says", "pristine": "not so", "patched": "more", "meant": "it is better"}


@pytest.mark.parametrize("change", [{"facts": 5}, {"differences": [STRAYED]}, None])
def test_a_census_is_what_the_facts_in_its_log_say(toy, change):
    root, run = toy.root / "receipts", toy.ran(toy.pack(), census=True)
    assert run.census.untaken and not run.census.differences  # a toy has no tensors
    path = write(run, root, "bench", ["pack07"], {})
    assert verify_all(root) == {}
    body, log = forged.both(path)
    if change is None:
        del body["predicate"]["patchlane"]["census"]
    else:
        body["predicate"]["patchlane"]["census"].update(change)
    path = forged.seal(path, body, log)
    assert list(verify_all(root)) == [path]


def test_a_census_verifies_in_whatever_order_its_calls_were_made(toy, monkeypatch):
    whole = experiment.run_arm

    def told(spec, tell):
        result = whole(spec, tell)
        if spec.census is not None:
            ends = "a float" if result.outcome == "bug" else "a float64"
            result.census = {f"core.{name}()": {"of": "", "ends": ends} for name in ("total", "mean")}
        return result

    monkeypatch.setattr(experiment, "run_arm", told)
    run = toy.run(toy.pack(), census=True)
    assert [one.call for one in run.census.differences] == ["core.total()", "core.mean()"]
    write(run, toy.root / "receipts", "bench", ["pack07"], {})
    assert verify_all(toy.root / "receipts") == {}


@pytest.mark.parametrize(
    ("outcome", "said"), [("healthy", "killed by a signal"), ("bug", "without the patch: killed by a signal")]
)
def test_a_census_that_a_tree_does_not_finish_is_told(toy, monkeypatch, outcome, said):
    whole = experiment.run_arm

    def cut(spec, tell):
        result = whole(spec, tell)
        if spec.census is not None and result.outcome == outcome:
            result.outcome, result.reason = "different", "killed by a signal"
        return result

    monkeypatch.setattr(experiment, "run_arm", cut)
    run = toy.run(toy.pack(), census=True)
    assert (run.ruling.verdict, run.census.cut) == (Verdict.REPRODUCED_AND_FIXED, said)
    write(run, toy.root / "receipts", "bench", ["pack07"], {})
    assert verify_all(toy.root / "receipts") == {}


@pytest.mark.parametrize(("arm", "outcome"), [("pristine", "healthy"), ("patched", "bug")])
def test_an_arm_is_what_its_checks_say(toy, arm, outcome):
    root = toy.root / "receipts"
    path = write(toy.ran(toy.pack()), root, "bench", ["pack07"], {})
    body, log = forged.both(path)
    (stated,) = body["predicate"]["patchlane"][arm]
    log = log.replace(f"[{arm}] -> {stated['outcome']} in", f"[{arm}] -> {outcome} in")
    rows = [
        row.replace(f'"outcome": "{stated["outcome"]}"', f'"outcome": "{outcome}"')
        if row.startswith(f"[{arm}] ")
        else row
        for row in log.split("\n")
    ]
    stated["outcome"] = outcome
    path = forged.seal(path, body, "\n".join(rows))
    assert any(arm in row and outcome in row and "its checks" in row for row in verify_all(root)[path])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_an_honest_number_without_end_is_a_different_failure_that_verifies(toy, value):
    """What a broken tree measures is recorded by its word, and no reader takes it for a number."""
    value_of = f"float('{value}'), 1, reference='none'"
    code = f"p.error('a', {value_of}, bug_above=2)\np.guard('b', {value_of})"
    path = write(toy.ran(toy.pack(reproducer=body(code))), toy.root / "receipts", "bench", [], {})
    assert verify_all(toy.root / "receipts") == {}
    kept = receipts.read(path).checks("pristine")
    assert [(check.measured, repr(check.number)) for check in kept] == [(value, value)] * 2
    assert [check.state for check in kept] == ["different", "failed"]


@pytest.mark.parametrize("limit", ["float('inf')", "float('nan')", "1, bug_above=float('nan')"])
def test_a_limit_that_nothing_exceeds_gives_no_verdict(toy, limit):
    code = f"p.error('wide', 0.0, {limit}, reference='none')"
    with pytest.raises(Misused):
        toy.ran(toy.pack(reproducer=body(code)))


SPELLINGS = {  # the same statement to a reader who does not look
    "a mark before it": lambda text: "\ufeff" + text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR": lambda text: text.replace("\n", "\r"),
    "a key twice, the first one false": lambda text: text.replace(
        '"verdict": ', '"verdict": "FIX_REGRESSES",\n    "verdict": '
    ),
    "a key twice, deep": lambda text: text.replace('"role": ', '"role": "note",\n "role": ', 1),
    "a key twice, alike": lambda text: text.replace('"at": "live"', '"at": "live",\n "at": "live"'),
    "other order": lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=1),
    "tabs": lambda text: text.replace("\n ", "\n\t"),
    "escapes": lambda text: text.replace("REPRODUCED_AND_FIXED", "REPRODUCED\\u005fAND_FIXED", 1),
    "another spelling of a number": lambda text: text.replace("1e-09", "1.0e-9"),
    "a number beyond floats": lambda text: text.replace("1e-09", "1e999", 1),
    "UTF-16": lambda text: text.encode("utf-16"),
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_a_statement_has_one_reading(toy, spelled):
    root = toy.root / "receipts"
    path = write(toy.ran(toy.pack()), root, "bench", ["pack07"], {})
    text = spelled(path.read_text())
    assert text != path.read_text()
    path = forged.named(path, text if isinstance(text, bytes) else text.encode())
    assert list(verify_all(root)) == [path]


@pytest.mark.parametrize("twice", ['"state": "bug", "state"', '"measured": 9, "measured"'])
def test_a_log_has_one_reading(toy, twice):
    root = toy.root / "receipts"
    path = write(toy.ran(toy.pack()), root, "bench", ["pack07"], {})
    body, log = forged.both(path)
    path = forged.seal(path, body, log.replace(twice.rpartition(", ")[2], twice, 1))
    assert list(verify_all(root)) == [path]


@pytest.fixture
def many(toy, monkeypatch):
    """A folder of 250 copies of one receipt, each named by the next."""
    root = toy.root / "one"
    write(toy.ran(toy.pack()), root, "bench", ["pack07"], {})
    monkeypatch.setattr(verification, "ROOT", toy.root)
    monkeypatch.setattr(shelf, "COMMITTED", toy.root / "none")
    copies.copies(root, toy.root / "many", 250)
    return toy.root / "many"


@pytest.mark.parametrize("cores", [{0}, {0, 1, 2}])
def test_on_one_core_as_on_several(many, monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    paths = shelf.every(many)
    assert len(paths) == 250 and verify_all(many) == {}
    bad = forged.checks(paths[99], first(measured=1e30))
    paths[7].with_suffix(".log").unlink()
    paths[200].write_text("{")
    verification._kept.clear(), verification._proofs.clear()
    assert set(verify_all(many)) == {bad, paths[7], paths[200]}


def test_what_is_named_is_not_proved_again_and_its_digests_are_compared(many, monkeypatch):
    paths = shelf.every(many)
    named = {heads.file_sha256(path) for path in paths}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(verification, "_named", set())
    monkeypatch.setattr(binding, "faults", lambda *given: pytest.fail("it was proved again"))
    assert verify_all(many, named=named) == {}
    with paths[3].with_suffix(".log").open("a") as log:
        log.write("more\n")
    copied = paths[5].with_name(paths[5].name.replace("bench", "other"))
    shutil.copy(paths[5], copied)
    shutil.copy(paths[5].with_suffix(".log"), copied.with_suffix(".log"))
    assert set(verify_all(many, named=named)) == {paths[3], copied}


def test_each_receipt_is_looked_at_once_however_many_there_are(many, monkeypatch):
    """The work is counted: that of a folder of twice as many is twice as much."""
    counts = []
    for number in (100, 200):
        part = many.with_name(f"part{number}")
        (part / "07").mkdir(parents=True)
        for path in shelf.every(many)[:number]:
            shutil.copy(path, part / "07"), shutil.copy(path.with_suffix(".log"), part / "07")
        calls = []
        real = verification._state
        monkeypatch.setattr(
            verification, "_state", lambda path, real=real, calls=calls: calls.append(path) or real(path)
        )
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
        assert verify_all(part) == {}
        counts.append(len(calls))
    assert counts[1] == 2 * counts[0]


@pytest.mark.rest
@pytest.mark.long
def test_ten_thousand_receipts_verify(tmp_path):
    """`python tests/kit/copies.py FOLDER 10000` prints what that takes."""
    assert copies.copies(shelf.COMMITTED, tmp_path, 10_000) == 10_000
    assert verify_all(tmp_path) == {}
