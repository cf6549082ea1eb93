"""The verb that adds a release: what it writes, and that it asks for none that is there."""

import hashlib

import pytest
from toy import PUBLISHED
from typer.testing import CliRunner

from reproducers import release
from reproducers.desk.start import releases
from reproducers.record import schema
from reproducers.record.schema import ROOT, load_releases
from reproducers.upstream import index
from reproducers.upstream.index import NoSuchRelease


@pytest.fixture
def project(toy, monkeypatch):
    """The toy's packs as the project's."""
    monkeypatch.setattr(schema, "ROOT", toy.root)
    toy.pack()
    return toy


def asked(*args):
    load_releases.cache_clear()
    return CliRunner().invoke(release.app, list(args))


def test_a_release_gets_the_digests_of_the_index(project, index_url):
    other = "other:\n  '2':\n    artifacts: {other-2.tar.gz: " + "a" * 64 + "}\n"
    # the pack of the release cannot be read before it is there, so it cannot tell the repository
    for option, told in (([], "--upstream OWNER/NAME"), (["--upstream", "toy/toyup"], "git ls-remote --tags")):
        project.publishes(other)
        done = asked("toyup", "1.0", *option)
        assert done.exit_code == 0 and told in done.output, done.output
    wheel = project.root / "index" / "toyup-1.0-py3-none-any.whl"
    listed = load_releases(project.packs)
    assert list(listed) == ["other", "toyup"]
    assert listed["toyup"]["1.0"].artifacts == {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}


def test_a_release_that_is_there_is_not_asked_for(project, monkeypatch):
    monkeypatch.setattr(index, "release_files", lambda *asked: pytest.fail("the index was asked"))
    before = (project.packs / "releases.yaml").read_text()
    assert before == PUBLISHED and asked("toyup", "1.0").exit_code == 0
    assert (project.packs / "releases.yaml").read_text() == before


def test_a_release_that_there_is_not_is_refused(project, index_url):
    before = (project.packs / "releases.yaml").read_text()
    assert isinstance(asked("toyup", "9.9").exception, NoSuchRelease)
    assert (project.packs / "releases.yaml").read_text() == before


def test_the_file_is_as_the_verb_writes_it():
    load_releases.cache_clear()
    assert (ROOT / "packs/releases.yaml").read_text() == releases.text(load_releases(ROOT / "packs"))
