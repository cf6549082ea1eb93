"""Another index than the one beside the audit: from a file, and from the address that the user gives."""

import functools
import http.server
import threading

import pytest
from toy_environment import known

from patchlane.base import clock, place
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.known import data


@pytest.fixture
def served(tmp_path, monkeypatch):
    """(the address of a folder, the folder)."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said):
            return None

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = functools.partial(Quiet, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", tmp_path
        server.shutdown()


def test_a_file_with_packs_beside_it_or_not(tmp_path):
    (tmp_path / "x.json").write_text(known().index.text)
    seen = data.known(str(tmp_path / "x.json"))
    assert (seen.index, seen.folder) == (known().index, place.PACKS)
    (tmp_path / "07_toy").mkdir()
    assert data.known(str(tmp_path / "x.json")).folder == tmp_path


def test_an_address(served):
    address, folder = served
    (folder / "x.json").write_text(known().index.text)
    assert data.known(f"{address}/x.json").index == known().index
    (folder / "x.json").write_text(known().index.text.replace('"schema_version": 2', '"schema_version": 9'))
    with pytest.raises(PatchlaneError) as error:
        data.known(f"{address}/x.json")
    assert "schema_version" in error.value.what and error.value.remedy == data.REMEDY


def test_an_address_that_does_not_answer(served, monkeypatch):
    address, folder = served
    with pytest.raises(CannotTestHere) as error:
        data.known(f"{address}/absent.json")
    with pytest.raises(CannotTestHere):
        data.known(f"{address}/a space.json")
    assert "curl" in error.value.remedy
    (folder / "x.json").write_text(known().index.text)
    monkeypatch.setattr(data, "WHOLE_S", -1)
    with pytest.raises(CannotTestHere):
        data.known(f"{address}/x.json")
    monkeypatch.setattr(clock, "ANSWER_S", 0.001)
    with pytest.raises(CannotTestHere):
        data.known("http://10.255.255.1/x.json")


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_damaged_or_missing_file(tmp_path, text):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(PatchlaneError) as error:
        data.known(str(tmp_path / "x.json"))
    assert "x.json" in error.value.what and error.value.remedy == data.REMEDY
