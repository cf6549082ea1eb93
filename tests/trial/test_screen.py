"""The screen shows whole arms and failing checks only, in colours, in lines that fit."""

import dataclasses
import io
import json
import re

import pytest
from rich.console import Console
from toy import SOURCE, body, edited, named, write_tree

from reproducers.base.verdicts import Verdict
from reproducers.record.receipt import Census, Check
from reproducers.trial import census, screen, session
from reproducers.trial.experiment import Request, Run
from reproducers.trial.rulings import Ruling
from reproducers.trial.screen import Announcer, Screen
from reproducers.upstream.store import Tree

RED, GREEN, YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"


def terminal(width=80, colour=True):
    """A console that writes escapes to a buffer, as on a terminal of that width."""
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard" if colour else None,
        width=width,
        highlight=False,
        soft_wrap=True,
    )


def shown(out):
    return out.file.getvalue()


def check(name, state, role="bug", measured=1.0, limit=0.5, **more):
    return Check(name=name, state=state, role=role, measured=measured, limit=limit, **more)


def lines(outcome, *checks, reason="seen"):
    """An arm's output with the engine's last line."""
    printed = [f"[{c.state:>9}] {c.name}: {c.measured}" for c in checks]
    record = {"checks": [c.model_dump() for c in checks], "outcome": outcome, "patchlane": "record", "reason": reason}
    record |= {"remedy": "", "sentinel": None, "executed": {}}
    end = f"-> {outcome} in 33.4 s, peak 0.37 GiB: {reason}"
    return ['{"patchlane": "stamp"}', "upstream warns", *printed, json.dumps(record, sort_keys=True), end]


def play(made, arm, output, pack="pack05"):
    for line in output:
        made.say(pack, arm, line)


BUG, FINE = check("gradient", "bug"), check("neighbour", "passed", "guard")


def test_an_arm_is_one_line_and_its_failing_checks():
    out = terminal(colour=False)
    play(Screen(out), "pristine", lines("bug", BUG, FINE))
    head, row = shown(out).splitlines()
    assert head.split() == ["pack05", "pristine", "bug", "1", "of", "2", "checks,", "33", "s"]
    assert row.split() == ["bug", "gradient:", "1,", "limit", "0.5"]
    out = terminal(colour=False)
    play(Screen(out), "patched", lines("healthy", FINE))
    assert shown(out).split() == ["pack05", "patched", "healthy", "1", "check,", "33", "s"]


def test_verbose_shows_every_line_but_the_machine_s():
    for streaming in (True, False):
        out = terminal(colour=False)
        play(Screen(out, verbose=True, streaming=streaming), "pristine", lines("bug", BUG, FINE))
        assert "upstream warns" in shown(out) and "[   passed] neighbour" in shown(out)
        assert "patchlane" not in shown(out) and len(shown(out).splitlines()) == 4


@pytest.mark.parametrize(
    ("state", "colour"), [("bug", RED), ("failed", RED), ("different", YELLOW), ("healthy", GREEN), ("passed", GREEN)]
)
def test_colours_reach_the_terminal(state, colour):
    out = terminal()
    Screen(out, verbose=True).say("pack05", "pristine", f"[{state:>9}] gradient: 1")
    assert f"{colour}[{state:>9}] gradient" in shown(out)
    out = terminal()
    play(Screen(out), "pristine", lines("bug", check("gradient", state)))
    assert f"{RED}bug" in shown(out)
    assert (f"{colour}{state}" in shown(out)) == (state in screen.FAILING)


def test_upstream_output_is_no_markup():
    out = terminal(colour=False)
    play(Screen(out), "pristine", lines("bug", check("[red]x[/]", "bug", measured="[/]", limit="no ValueError")))
    assert "[red]x[/]: raised [/]" in shown(out)


def test_lines_are_cut_to_the_terminal():
    out = terminal(width=80, colour=False)
    long = check("gradient " * 9, "bug", measured="ValueError: " + "x" * 200, limit="no ValueError /x/ from a.py")
    play(Screen(out), "pristine", lines("bug", long))
    assert [len(line) for line in shown(out).splitlines()] == [len(shown(out).splitlines()[0]), 80]
    play(Screen(out), "patched", ["x" * 300, "-> different in 1.0 s, peak 0.1 GiB: " + "y" * 300])
    assert max(len(line) for line in shown(out).splitlines()) == 80


def test_an_attempt_shows_its_exception_only():
    told = screen.told
    assert told(check("refuses: ValueError", "passed", measured="returned", limit="no exception")) == (
        "refuses: ValueError"
    )
    assert told(check("runs", "failed", measured="KeyError: 1", limit="no exception")) == "runs: raised KeyError: 1"
    assert told(check("peak", "bug", measured=12.345678, limit=2, unit="GiB")) == "peak: 12.35 GiB, limit 2"
    assert told(check("tables", "skipped", "note", None, None, detail="no nvcc")) == "tables: no nvcc"


def test_packs_side_by_side_do_not_mix_their_lines():
    out, names = terminal(colour=False), ["pack01", "pack02", "pack03"]
    made = Screen(out, verbose=True, streaming=False)
    for row in zip(*(lines("bug", BUG, FINE) for _ in names), strict=True):
        for name, line in zip(names, row, strict=True):
            made.say(name, "pristine", line)
    assert [line.split()[0] for line in shown(out).splitlines()] == [name for name in names for _ in range(4)]


def test_an_arm_that_died_shows_its_last_lines():
    out = terminal(colour=False)
    output = [*(f"line {n}" for n in range(9)), "-> different in 2.0 s, peak 0.1 GiB: SIGSEGV"]
    play(Screen(out), "pristine", output)
    rows = [line.strip() for line in shown(out).splitlines()]
    assert rows[1:] == ["line 4", "line 5", "line 6", "line 7", "line 8", "SIGSEGV"]


def test_nothing_is_said_after_an_interrupt(toy):
    out = terminal()
    made = Screen(out)
    made.silence()
    play(made, "pristine", ["-> different in 2.0 s, peak 0.1 GiB: died of signal SIGKILL"])
    made.end(Run(toy.pack(), Request()))
    assert shown(out) == ""


def test_what_takes_long_is_named_on_a_terminal_and_not_in_a_pipe(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: clock[0])
    made = Screen(terminal())
    made.begin("pack05")
    assert made._progress().plain == ""
    clock[0] += 3
    assert made._progress().plain == "pack05 preparing 3 s"
    made.say("pack05", "patched", "a line")
    clock[0] += 5
    assert made._progress().plain == "pack05 patched 5 s"
    piped = Screen(Console(file=io.StringIO(), width=80))
    piped.begin("pack05")
    clock[0] += 5
    with piped.live():
        pass
    assert shown(piped.out) == ""


def test_a_census_is_told_when_it_begins_and_in_a_line_when_it_ends(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(screen.time, "monotonic", lambda: clock[0])
    made = Screen(terminal(width=60, colour=False))
    made.begin("pack05")
    made.say("pack05", "verdict", census.BEGUN)
    clock[0] += 3
    assert made._progress().plain == "pack05 census 3 s"
    made.say("pack05", "verdict", census.told(Census(facts=7, differences=[], untaken="", cut="x" * 99)))
    made.say("pack05", "verdict", "FIX_VALIDATED: seen")
    begun, ended = shown(made.out).splitlines()
    assert begun.startswith("pack05 census    ") and ended.startswith("pack05 census    7 facts") and len(ended) <= 60


def test_small_files_are_fetched_without_a_word():
    out = terminal(colour=False)
    announce = Announcer(out)
    for done in range(0, 4 * 2**20, 2**18):
        announce("psutil.whl", done, 4 * 2**20)
    assert shown(out) == ""
    for done in range(0, 8 * 2**20 + 1, 2**18):
        announce("torch.whl", done, 8 * 2**20)
    assert len(shown(out).splitlines()) == 5 and "torch.whl" in shown(out)


@pytest.fixture
def ran(toy):
    return toy.run(toy.pack())


def test_the_verdict_is_one_line_of_numbers(toy, ran):
    line, sentinels = screen.verdict(ran, 80).plain.splitlines()
    assert line.split()[:2] == ["pack07", "REPRODUCED_AND_FIXED"]
    assert re.findall(r"\d+", line) == ["07", "2", "2"] and "bug -> healthy" in line
    assert sentinels.split() == ["BUG_REPRODUCED", "FIX_VALIDATED"]
    healthy = toy.run(
        ran.pack, edited(("values[1:]:", "values:"), ('raise ValueError("empty is not supported")', "return None"))
    )
    line = screen.verdict(healthy, 80).plain
    assert line.split()[:2] == ["pack07", "FIXED_UPSTREAM"] and re.findall(r"\d+", line) == ["07", "2", "2"]
    pristine = toy.run(toy.pack(reproducer=body('p.error("total", 1, 0, reference="0", bug_above=1)')), arm="pristine")
    line = screen.verdict(pristine, 80).plain.splitlines()[0]
    assert line.split()[:2] == ["pack07", "REPRODUCED"] and re.findall(r"\d+", line) == ["07", "1"]
    stale = Run(ran.pack, Request(), ruling=Ruling(Verdict.UNTESTABLE, "reason " * 40))
    assert len(screen.verdict(stale, 80).plain) == 80


def test_a_row_of_the_closing_table_is_one_line_at_80_columns(ran):
    sha = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
    labels = [f"git {sha} + 02", "megatron-core 0.19.0 + 02", "a-folder-with-a-name-of-some-length (dirty)"]
    runs = [dataclasses.replace(ran, tree=Tree(ran.tree.path, "d", named(label))) for label in labels]
    out = Console(file=io.StringIO(), width=80)
    session.summary(runs, out)
    rows = [line for line in shown(out).splitlines() if "pack07" in line]
    assert len(rows) == 3 and all("REPRODUCED_AND_FIXED" in row and len(row) <= 80 for row in rows)
    assert sha[:12] in rows[0] and sha not in shown(out) and labels[1] in rows[1]


def test_junit_holds_what_an_upstream_prints(toy, tmp_path):
    write_tree(toy.upstream, SOURCE)
    run = toy.run(toy.pack(reproducer=body('p.guard_attempt("a\\x1b[31m", lambda: 1 / 0)')), arm="pristine")
    session.write_junit([run], tmp_path / "j.xml")
    import xml.etree.ElementTree as ElementTree

    root = ElementTree.parse(tmp_path / "j.xml").getroot()
    failed = {case.get("name") for case in root.iter("testcase") if case.find("failure") is not None}
    assert failed == {"verdict", "arm", "a\N{SYMBOL FOR ESCAPE}[31m"}
