"""Reading a checkpoint of a run that goes on, and removes it meanwhile."""

import pytest

from model.saved import reading
from patchlane.base.errors import PatchlaneError


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoints" / "step_0000004"
    path.mkdir(parents=True)
    (path / "metadata.json").write_text("{}")
    return path


def test_one_that_goes_while_it_is_read_is_not_damaged(checkpoint, monkeypatch):
    def compare(path):
        path.rename(path.with_name(".partial-" + path.name))
        return OSError("No such file or directory")

    monkeypatch.setattr(reading, "damage", compare)
    with pytest.raises(PatchlaneError) as refused:
        reading.whole(checkpoint)
    assert "--set keep" in refused.value.remedy


def test_one_that_goes_while_its_tensors_are_read(checkpoint):
    with pytest.raises(PatchlaneError) as refused, reading.staying(checkpoint):
        checkpoint.rename(checkpoint.with_name(".partial-" + checkpoint.name))
        reading.shapes(checkpoint)
    assert "--set keep" in refused.value.remedy


def test_what_else_is_wrong_with_it_is_told_as_it_is(checkpoint):
    with pytest.raises(PatchlaneError) as refused:
        reading.whole(checkpoint)
    assert refused.value.what.startswith(f"{checkpoint} is damaged")
