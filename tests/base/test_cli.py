"""What a verb prints of others' texts is printable, on every way to the screen; what it says of itself can be run."""

import os
import pty
import subprocess
import sys

import pytest
from toy import body

from patchlane.base.errors import PatchlaneError
from reproducers.base import cli
from reproducers.record.schema import ROOT

EVIL = "\x1b]52;c;aGk=\x07\x1b[2J\u202e\x9b1A"
OBEYED = ("\x1b]", "\x1b[2J", "\u202e", "\x9b", "\x07")
WAYS = {
    "print": "print(EVIL)",
    "print to stderr": "print(EVIL, file=sys.stderr)",
    "typer": "typer.echo(EVIL)",
    "typer to stderr": "typer.echo(EVIL, err=True)",
    "rich": "cli.console().print(Text(EVIL, 'red'))",
    "rich, its markup": "cli.console(stderr=True, highlight=False).print(f'[bold]{EVIL}[/]')",
    "rich, a table": "t = Table(EVIL); t.add_row(EVIL); cli.console().print(t)",
    "rich, below a moving line": "c = cli.console(); exec('with Live(Text(EVIL), console=c): c.print(EVIL)')",
    "a refusal": "raise PatchlaneError(EVIL, EVIL)",
    "a fault": "raise KeyError(EVIL)",
    "a full disk": "raise OSError(28, EVIL, EVIL)",
    "an import": "raise ImportError(EVIL, name=EVIL)",
}
VERB = """
import sys, typer
from rich.live import Live
from rich.table import Table
from rich.text import Text
from reproducers.base import cli
from patchlane.base.errors import PatchlaneError
EVIL = {evil!r}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
@app.command()
def main():
    print("said", flush=True)
    {way}
cli.guarded(app)
"""


def on_a_terminal(command, cwd, pythonpath=ROOT):
    """All that a terminal gets of a command."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(pythonpath), "TERM": "xterm-256color", "COLUMNS": "100"}
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cwd)
    os.close(theirs)
    got = b""
    try:
        while data := os.read(ours, 65536):
            got += data
    except OSError:  # Linux says so that the other end is closed
        pass
    child.wait()
    os.close(ours)
    return got.decode(errors="surrogateescape")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_reaches_the_terminal(way, tmp_path):
    shown = on_a_terminal([sys.executable, "-c", VERB.format(evil=EVIL, way=way)], cwd=tmp_path)
    assert "said" in shown and "52;c;aGk=" in shown, shown
    assert not [sign for sign in OBEYED if sign in shown], shown


def test_all_else_is_printed_as_it_is(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for way in ("print", "typer", "rich"):
        code = VERB.format(evil="Grüße\t1\n2", way=WAYS[way].replace("Text(EVIL, 'red')", "Text(EVIL)"))
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode().replace("   ", "\t").split() == ["said", "Grüße", "1", "2"]


def test_our_own_colours_stay(tmp_path):
    shown = on_a_terminal([sys.executable, "-c", VERB.format(evil="word", way=WAYS["rich"])], cwd=tmp_path)
    assert "\x1b[31mword" in shown


def test_an_arm_that_prints_escapes(toy, monkeypatch):
    """Printed, raised and as a check's name: with -v and without."""
    lines = [
        f"print({EVIL!r}, flush=True)",
        f"p.guard({EVIL!r}, 1.0, 0.5, reference='none')",
        f"raise RuntimeError({EVIL!r})",
    ]
    pack = toy.pack(reproducer=body("\n".join(["p.upstream('toyup')", *lines])))
    toy.publish()
    root = toy.repository(pack)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    for option in ((), ("-v",)):
        command = [sys.executable, "-m", "reproducers.run", "pack07", "--offline", *option]
        shown = on_a_terminal(command, cwd=root, pythonpath=root)
        assert "DIFFERENT_FAILURE" in shown and "52;c;aGk=" in shown, shown
        assert not [sign for sign in OBEYED if sign in shown], shown


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(cli, "_left", [])
    monkeypatch.setattr(cli, "SPOKEN", {})


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([str(ROOT / "reproducers/audit.py"), "--python", "a b"], "python -m reproducers.audit --python 'a b'"),
        ([str(ROOT / "model/train.py"), "x"], "python -m model.train x"),
        ([str(ROOT / "model/data/__main__.py")], "python -m model.data"),
        (["patchlane run", "7"], "patchlane run 7"),
    ],
)
def test_an_interrupted_verb_names_the_command_that_goes_on(monkeypatch, argv, command):
    monkeypatch.setattr(sys, "argv", argv)
    first, fix = cli.interrupted().splitlines()
    assert first.startswith("interrupted: ") and fix == f"  fix: {command}"


def test_what_is_left_and_what_to_add_come_from_the_verb(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["patchlane run", "7"])
    cli.leaves(lambda: ("2 receipts in there", ["--missing-from", "there"]))
    assert cli.interrupted() == "interrupted: 2 receipts in there\n  fix: patchlane run 7 --missing-from there"
    monkeypatch.setattr(sys, "argv", ["patchlane run", "7", "--missing-from", "there"])
    assert cli.interrupted().endswith("fix: patchlane run 7 --missing-from there")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_typers_own_end_after_an_interrupt_says_it_too(monkeypatch, capsys, kind):
    def app():
        raise KeyboardInterrupt if kind is KeyboardInterrupt else SystemExit(130)

    monkeypatch.setattr(sys, "argv", ["patchlane audit"])
    with pytest.raises(SystemExit) as ended:
        cli.guarded(app)
    assert ended.value.code == 130 and capsys.readouterr().err.endswith("  fix: patchlane audit\n")


def test_a_remedy_names_a_verb_as_it_was_called(monkeypatch, capsys):
    def app():
        raise PatchlaneError("no", "python -m reproducers.upstream_tests pack09, then python -m pytest")

    said = []
    for spoken in ({}, {"reproducers.upstream_tests": "upstream-tests"}):
        monkeypatch.setattr(cli, "SPOKEN", spoken)
        with pytest.raises(SystemExit):
            cli.guarded(app)
        said.append(capsys.readouterr().err.splitlines()[-1])
    tail = "pack09, then python -m pytest"
    assert said == [f"  fix: python -m reproducers.upstream_tests {tail}", f"  fix: patchlane upstream-tests {tail}"]
