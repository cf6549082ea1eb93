"""Fixtures shared by all tests: the toy upstream and its pack, in a temporary folder."""

import pytest
from toy import Toy

from reproducers import receipts


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A toy upstream with two bugs, a packs folder, a store and receipts, none of them shared."""
    monkeypatch.setattr(receipts, "COMMITTED", tmp_path / "committed")
    return Toy(tmp_path)
