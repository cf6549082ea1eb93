"""The worker process itself: it names missing artefacts and raises its errors here."""

import pytest
from isolated import Worker


def fail():
    raise ZeroDivisionError("in the worker")


@pytest.mark.upstream
def test_an_error_there_is_raised_here(megatron):
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        megatron.call(fail)


def test_without_upstream_artefacts_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATCHLANE_STORE", str(tmp_path))
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    worker = Worker()
    worker.close()
    assert "offline" in worker.missing


def test_another_librarys_tests_do_not_hide_ours(monkeypatch, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATCHLANE_STORE", str(tmp_path / "store"))  # nothing is activated: the process is what counts
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    worker = Worker()
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        worker.call(fail)
    worker.close()
