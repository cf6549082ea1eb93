"""What a start refuses before it fetches anything."""

import errno
import os
import tempfile

import pytest

from model.definition.recipes import Recipe
from model.definition.run import Run
from model.loop import session
from model.patched import overlay, stacks
from reproducers.base.errors import PatchlaneError


def test_a_folder_that_became_read_only(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(overlay, "build", lambda *_: pytest.fail("upstream was built"))
    with pytest.raises(PatchlaneError) as refused:
        session.train(Recipe(size="nam56r_tiny"), Run(), "all", [], stacks.named(), held_out=[], folder=tmp_path)
    assert str(tmp_path) in refused.value.what and refused.value.remedy.startswith("--out ")
