"""What hosts must share, seen by one rank."""

import errno
import os
from pathlib import Path

import pytest

from model.loop.ranks import hosts
from patchlane.base.errors import PatchlaneError


@pytest.fixture
def alone(monkeypatch):
    """Rank 0 of one, without a process group."""
    monkeypatch.setattr(hosts.dist, "broadcast_object_list", lambda names: None)
    monkeypatch.setattr(hosts.dist, "get_rank", lambda: 0)
    for name in ("first", "every"):
        monkeypatch.setattr(hosts.agreement, name, lambda work: work())


def test_a_folder_that_is_seen_is_left_as_it_was(alone, tmp_path):
    hosts.shared(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_read_only_folder_is_told_with_its_remedy(alone, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PatchlaneError) as refused:
        hosts.shared(tmp_path)
    assert str(tmp_path) in refused.value.what and refused.value.remedy.startswith("--out ")
