"""Files of tensors."""

import os
import sys
from pathlib import Path

import pytest
import torch

from model.families.sizes import SIZES
from model.saved import reading, tensor_files, weights
from patchlane.base.errors import CannotTestHere, PatchlaneError


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_all_that_is_exported_follows_the_umask(mask, tmp_path):
    """safetensors leaves the mode of a temporary file, which nobody else can read."""
    pytest.importorskip("safetensors", reason="safetensors is not installed: pip install -e .[data]")
    before = os.umask(mask)
    try:
        tensor_files.write(tmp_path / "model.safetensors", {"weight": torch.zeros(3)})
        config = tensor_files.Config(size=SIZES["nam56r_tiny"])
        described = tensor_files.described(config, "float32")
        tensor_files.close(tmp_path, described, {"weight": "model.safetensors"}, 12)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_written_is_told_with_room_and_rights():
    with pytest.raises(PatchlaneError) as refused:
        tensor_files.write(Path("/proc/w.safetensors"), {"weight": torch.zeros(1)})
    assert "/proc/w.safetensors" in refused.value.what
    assert "df -h /proc," in refused.value.remedy and "may write" in refused.value.remedy


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', "size: "),
        ('{"size": {"name": 1}}', "size.name: "),
        ("[]", ""),
    ],
)
def test_a_config_of_another_model_says_which_field_is_not_its(text, named, tmp_path):
    (tmp_path / tensor_files.CONFIG).write_text(text)
    with pytest.raises(PatchlaneError) as refused:
        tensor_files.config(tmp_path)
    assert tensor_files.CONFIG in refused.value.what and named in refused.value.what
    assert "validation error" not in refused.value.what


def test_a_config_of_before_still_reads_and_one_of_now_tells_the_rows(tmp_path):
    for config in (
        tensor_files.Config(size=SIZES["nam56r_tiny"], step=3),
        tensor_files.Config(size=SIZES["nam56r_tiny"], sequence=64, recipe={"learning_rate": 1e-3}),
    ):
        (tmp_path / tensor_files.INDEX).write_text('{"weight_map": {}}')
        (tmp_path / tensor_files.CONFIG).write_text(config.model_dump_json(exclude_none=True))
        assert tensor_files.config(tmp_path) == config


def test_an_export_without_safetensors_is_refused_before_the_checkpoint_is_read(tmp_path, monkeypatch):
    (tmp_path / "metadata.json").touch()
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setattr(reading, "damage", lambda _: pytest.fail("the checkpoint was read"))
    with pytest.raises(CannotTestHere):
        weights.export(tmp_path, tmp_path / "made")
    assert not (tmp_path / "made").exists()
