"""The package index: what it is asked for, and that it is not asked when the run is offline."""

import contextlib
import socket
from types import SimpleNamespace

import pytest

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere
from patchlane.base.exits import Exit
from reproducers.upstream import index
from reproducers.upstream.store import Store, no_progress


@pytest.fixture
def no_socket(monkeypatch):
    """Any socket that is made fails the test, and offline is asked for."""
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    monkeypatch.setattr(socket, "socket", lambda *args, **more: pytest.fail("a socket was opened"))
    monkeypatch.setattr(socket, "create_connection", lambda *args, **more: pytest.fail("a connection was opened"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: pytest.fail("a name was looked up"))


def test_offline_opens_no_socket(no_socket, tmp_path):
    with pytest.raises(CannotTestHere):
        index.release_files("toyup", "1.0")
    with pytest.raises(CannotTestHere):
        index.download("toyup", "toyup-1.0.tar.gz", tmp_path / "x", lambda *progress: None)
    with pytest.raises(CannotTestHere):
        Store(tmp_path / "store").release_tree("toyup", "1.0", "toyup-1.0.tar.gz", "a" * 64)
    assert index.unreachable("toyup")


def test_what_the_index_has_not_is_bad_input(index_url, tmp_path):
    assert list(index.release_files("toyup", "1.0")) == ["toyup-1.0-py3-none-any.whl"]
    for asked in (("toyup", "9.9"), ("no-such-toy", "1.0")):
        with pytest.raises(CannotTestHere) as refused:
            index.release_files(*asked)
        assert refused.value.exit_code == Exit.USAGE and refused.value.remedy
    with pytest.raises(CannotTestHere):
        index.download("no-such-toy", "x.whl", tmp_path / "x", lambda *progress: None)
    assert index.sizes({("no-such-toy", "x.whl")}) == {}


def test_the_newest_releases_are_listed_as_versions(monkeypatch):
    names = ["0.2.0", "0.9.0", "0.10.0", "0.19.2", "odd name", None]
    page = SimpleNamespace(packages=[SimpleNamespace(version=name, digests={}, filename="x") for name in names])

    class Client:
        def __enter__(self):
            return self

        def __exit__(self, *ended):
            return None

        def get_project_page(self, distribution):
            return page

    monkeypatch.setattr(index, "_client", Client)
    with pytest.raises(CannotTestHere) as refused:
        index.release_files("toyup", "3.0")
    assert refused.value.remedy.endswith(": 0.19.2, 0.10.0, 0.9.0, 0.2.0, odd name")


@contextlib.contextmanager
def silent_server():
    """The port of a server that accepts, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("ask", ["releases", "release_files", "download", "sizes"])
def test_a_silent_index_is_given_up(monkeypatch, tmp_path, ask):
    monkeypatch.setattr(clock, "ANSWER_S", 0.5)
    monkeypatch.delenv("PATCHLANE_OFFLINE", raising=False)
    arguments = {
        "releases": ("toyup",),
        "release_files": ("toyup", "1.0"),
        "download": ("toyup", "x.whl", tmp_path / "x", no_progress),
        "sizes": ({("toyup", "x.whl")},),
    }[ask]
    with silent_server() as port:
        for name, value in {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple/", "NO_PROXY": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        if ask == "sizes":
            assert index.sizes(*arguments) == {}
            return
        with pytest.raises(CannotTestHere, match="timed out") as caught:
            getattr(index, ask)(*arguments)
    assert caught.value.exit_code is Exit.CANNOT_TEST and caught.value.remedy


def test_a_file_that_never_ends_is_given_up(index_url, monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "FETCH_S", -1)
    with pytest.raises(CannotTestHere, match="bytes in"):
        index.download("toyup", "toyup-1.0-py3-none-any.whl", tmp_path / "x", no_progress)
