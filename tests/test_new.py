"""The verb that begins a pack: what it prints, and that --offline is heard."""

import os

import pytest
from typer.testing import CliRunner

from reproducers import new
from reproducers.base.errors import CannotTestHere
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
    *files, step = done.output.splitlines()
    assert files and all((project / name).is_file() for name in files)
    assert "python -m reproducers.lint pack99" in step


def test_offline_is_heard(project, index_url, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    done = CliRunner().invoke(new.app, [*ASKED, "--offline"])
    assert isinstance(done.exception, CannotTestHere) and not list((project / "packs").iterdir())
