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
