"""Arms keep results of the TileLang lane by content, and never keep failures."""

import json
import subprocess

import pytest

from reproducers.probe.checks import CannotTest
from reproducers.probe.lanes import kept, tilelang

REPORT = """ptxas info    : Function properties for main_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 90 registers
ptxas info    : Function properties for other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """An nvcc on the path; returns the list of sources that it compiled."""
    tool = tmp_path / "nvcc"
    tool.write_text("#!/bin/sh\necho release 13.0\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    calls = []

    def compiled(path, source):
        calls.append(source)
        if "broken" in source:
            raise RuntimeError("nvcc rejects the source with 1 errors: broken")
        return REPORT

    monkeypatch.setattr(tilelang, "_compile", compiled)
    return calls


def test_resources_are_those_of_the_hungriest_kernel(compiler):
    used = kept.nvcc("good")
    assert used == {"registers": 168, "stack": 16, "spill_stores": 8, "spill_loads": 12}
    assert kept.nvcc("good") == used
    kept.nvcc("good too")
    assert compiler == ["good", "good too"]


def test_a_failure_is_never_kept(compiler):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            kept.nvcc("broken")
    assert compiler == ["broken", "broken"]


def test_without_a_cache_folder_nothing_is_kept(compiler, monkeypatch, tmp_path):
    monkeypatch.delenv("TILELANG_CACHE_DIR")
    kept.nvcc("good")
    kept.nvcc("good")
    assert len(compiler) == 2 and not (tmp_path / "cache").exists()


def test_without_nvcc_it_cannot_be_tested(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(CannotTest, match="nvcc"):
        kept.nvcc("good")


def test_kept_files_are_whole(compiler, tmp_path):
    kept.nvcc("good")
    (file,) = (tmp_path / "cache" / "patchlane-cubin").iterdir()
    assert json.loads(file.read_text())["registers"] == 168
    assert subprocess.run(["ls", "-A", file.parent], capture_output=True, text=True).stdout.split() == [file.name]
