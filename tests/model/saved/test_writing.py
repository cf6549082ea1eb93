"""A checkpoint of weights that cannot be written to its end leaves nothing."""

import resource

import pytest
import torch

from model.saved import reading, writing
from patchlane.base.disk import FULL
from patchlane.base.errors import PatchlaneError


@pytest.fixture
def small_files():
    """No file may have more than 100 KB, as on a disk that is full by then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(tmp_path, small_files):
    with pytest.raises(PatchlaneError) as refused:
        writing.write(tmp_path / reading.name(0), {"weight": torch.zeros(100_000)}, {"step": 0})
    assert refused.value.remedy == FULL and str(tmp_path) in refused.value.what
    assert not [*tmp_path.iterdir()]


def test_an_interrupt(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write_digests", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writing.write(tmp_path / reading.name(0), {"weight": torch.zeros(8)}, {"step": 0})
    assert not [*tmp_path.iterdir()]
