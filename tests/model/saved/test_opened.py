"""A checkpoint of an architecture that is trained alone is told as such by every command that opens one."""

import pytest
import torch
from typer.testing import CliRunner

from model import generate, weights
from model.evaluation import opening
from model.families import deepseek_v4
from model.patched import stacks
from model.saved import opened, reading, writing
from reproducers.base.errors import PatchlaneError

TINY = deepseek_v4.SIZES["v4_tiny"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of one that says v4_tiny."""
    path = tmp_path_factory.mktemp("run") / "checkpoints" / reading.name(0)
    said = {"step": 0, "size": TINY.model_dump(mode="json"), "weights_only": True}
    return writing.write(path, {"weight": torch.zeros(3)}, said)


def test_the_description_of_a_checkpoint(checkpoint):
    for ask in (opened.opened, lambda path: opening.opened(path, stacks.named())):
        with pytest.raises(PatchlaneError) as error:
            ask(checkpoint)
        assert TINY.unread in error.value.what


def test_commands(checkpoint, tmp_path):
    for app, arguments in (
        (generate.app, [str(checkpoint), "--prompt", "a"]),
        (weights.app, ["export", str(checkpoint), str(tmp_path / "out")]),
    ):
        ended = CliRunner().invoke(app, arguments)
        assert isinstance(ended.exception, PatchlaneError) and TINY.unread in ended.exception.what, ended
    assert not (tmp_path / "out").exists()
