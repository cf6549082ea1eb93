"""Fixtures shared by all tests: the toy upstream and its pack, in a temporary folder."""

import pytest
from toy import Toy


@pytest.fixture
def toy(tmp_path):
    """A toy upstream with two bugs, a packs folder and a store, none of them shared."""
    return Toy(tmp_path)
