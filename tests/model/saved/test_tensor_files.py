"""Files of tensors."""

from pathlib import Path

import pytest
import torch

from model.saved import tensor_files
from reproducers.base.errors import PatchlaneError


def test_a_folder_that_cannot_be_written_is_told_with_room_and_rights():
    with pytest.raises(PatchlaneError) as refused:
        tensor_files.write(Path("/proc/w.safetensors"), {"weight": torch.zeros(1)})
    assert "/proc/w.safetensors" in refused.value.what
    assert "df -h /proc," in refused.value.remedy and "may write" in refused.value.remedy
