"""A checkpoint of an architecture that few commands read is told as such by every other one that opens it."""

import json

import pytest
import torch
from typer.testing import CliRunner

from model import generate
from model.evaluation import opening
from model.families import deepseek_v4, deepseek_v4_config
from model.patched import stacks
from model.saved import opened, reading, tensor_files, writing
from patchlane.base.errors import PatchlaneError

TINY = deepseek_v4.SIZES["v4_tiny"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of one that says v4_tiny."""
    path = tmp_path_factory.mktemp("run") / "checkpoints" / reading.name(0)
    said = {"step": 0, "size": TINY.model_dump(mode="json"), "weights_only": True}
    return writing.write(path, {"weight": torch.zeros(3)}, said)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder of safetensors of it, as far as its description goes."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / tensor_files.CONFIG).write_text(json.dumps(deepseek_v4_config.written(TINY, "float32", 256)))
    (folder / tensor_files.INDEX).write_text('{"weight_map": {}}')
    return folder


@pytest.mark.parametrize("kept", ["checkpoint", "exported"])
def test_what_does_not_read_it(kept, request):
    path = request.getfixturevalue(kept)
    asked = [opened.opened] + [lambda path: opening.opened(path, stacks.named())] * (kept == "checkpoint")
    for ask in asked:
        with pytest.raises(PatchlaneError) as error:
            ask(path)
        assert TINY.unread in error.value.what and "model.weights" in error.value.remedy
    ended = CliRunner().invoke(generate.app, [str(path), "--prompt", "a"])
    assert isinstance(ended.exception, PatchlaneError) and TINY.unread in ended.exception.what, ended
