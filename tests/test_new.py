"""The verb that begins a pack: what it prints, and that --offline is heard."""

import ast
import importlib
import inspect
import os
import re

import pytest
import typer
from toy import SOURCE, TOTAL, diff, edited
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers import new
from reproducers.__main__ import VERBS
from reproducers.carried import entry, importing
from reproducers.carried.patches import mails
from reproducers.desk.patches import short_header
from reproducers.desk.start import skeleton
from reproducers.record import schema

ASKED = ["toy_total", "--upstream", "toy/toyup", "--release", "1.0"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project without packs; the templates are read from the real one, wherever this test runs first."""
    assert skeleton.TEMPLATES.is_dir()
    (tmp_path / "packs").mkdir()
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    return tmp_path


def test_it_names_the_files_and_the_next_step(project, index_url):
    done = CliRunner().invoke(new.app, [*ASKED, "--number", "99"])
    assert done.exit_code == 0, done.output
    said = done.output.splitlines()
    files, told, step = [line for line in said if line.startswith("packs/")], said[-3:-1], said[-1]
    assert "git ls-remote --tags" in told[0] and "formatters.py" in told[1]
    assert files and all((project / name).is_file() for name in files)
    assert "python -m reproducers.lint pack99" in step


def test_offline_is_heard(project, index_url, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    done = CliRunner().invoke(new.app, [*ASKED, "--offline"])
    assert isinstance(done.exception, CannotTestHere) and not list((project / "packs").iterdir())


@pytest.mark.parametrize("verb", sorted(VERBS.values()))
def test_no_word_of_a_help_text_is_lost(verb):
    """Brackets are rich's markup, which prints none of them."""
    module = importlib.import_module(verb)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{verb}.__main__")
    if not hasattr(module, "app"):  # made where the module is run
        given = [
            node.value
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.keyword) and node.arg == "help"
        ]
        assert not any("[" in part.value for node in given for part in ast.walk(node) if isinstance(part, ast.Constant))
        return
    app = module.app
    command = typer.main.get_command(app)
    commands = [command, *getattr(command, "commands", {}).values()]
    for one in commands:
        path = [] if one is command else [one.name]
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "1000", "TERM": "dumb"}, terminal_width=1000)
        assert shown.exit_code == 0, shown.output
        texts = [one.help or "", *(getattr(param, "help", None) or "" for param in one.params)]
        for part in [part for text in texts for part in re.findall(r"\[[^\]]*\]", text)]:
            assert part in shown.output, f"{verb} --help loses {part}"


def test_a_pack_grows_from_a_carried_patch(project, index_url, tmp_path):
    (tmp_path / "ours.patch").write_text("Sum all values\n\n" + diff(tmp_path, SOURCE, edited(TOTAL)))
    given = importing.subject("toy/toyup", "1.0", None, None, None)
    taken = importing.entries(mails.files([tmp_path / "ours.patch"]), given, f"toy/fork@{'1' * 40}", None, False)[0]
    (one,) = entry.write(tmp_path, "q", taken)
    done = CliRunner().invoke(new.app, ["toy_total", "--number", "99", "--from-carried", str(one.folder)])
    assert done.exit_code == 0, done.output
    short = short_header.read(project / "packs/99_toy_total/fix.patch")
    assert (short.field("Subject"), short.field("Pack")) == ("Sum all values", "99")
    assert short.field("Origin") == f"toy/fork@{'1' * 40} (<write its licence>)"
    assert short.diff.decode() == diff(tmp_path, SOURCE, edited(TOTAL))
    (pack,) = schema.load_named(["pack99"], project / "packs")
    assert (pack.upstream.repo, pack.pins["live"].release) == ("toy/toyup", "1.0")


@pytest.mark.parametrize("args", [["x"], ["x", "--upstream", "a/b"], ["x", "--from-carried", "q", "--kind", "report"]])
def test_what_a_pack_has_to_be_told(project, index_url, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.patch").write_text(diff(tmp_path, SOURCE, edited(TOTAL)))
    given = importing.subject("toy/toyup", "1.0", None, None, None)
    entry.write(
        tmp_path, "q", importing.entries(mails.files([tmp_path / "ours.patch"]), given, "theirs", None, False)[0]
    )
    done = CliRunner().invoke(new.app, args)
    assert isinstance(done.exception, PatchlaneError) and not list((project / "packs").iterdir())
