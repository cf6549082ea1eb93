"""Libraries that only some uses need: the module, or the error that the caller wants with the command."""

import json

import pytest

from patchlane.base import optional
from patchlane.base.errors import CannotTestHere, StoreError


def test_what_is_there_is_imported():
    assert optional.load("json", "json") is json


@pytest.mark.parametrize("error", [CannotTestHere, StoreError])
def test_what_is_missing_is_named_with_its_command(error):
    with pytest.raises(error) as caught:
        optional.load("a_module_that_is_nowhere", "some-distribution", error)
    assert caught.value.remedy == "pip install some-distribution"
