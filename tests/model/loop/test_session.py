"""What a start refuses before it fetches anything."""

import errno
import importlib.util
import json
import os
import tempfile
from dataclasses import replace

import pytest
from data_kit import BYTES, make_dataset

from model.definition.recipes import Recipe
from model.families.sizes import SIZES
from model.kinds.run import Run
from model.loop import session
from model.patched import overlay, stacks
from model.records import metrics
from model.saved import reading
from patchlane.base.errors import CannotTestHere, PatchlaneError


def test_a_folder_that_became_read_only(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(overlay, "build", lambda *_: pytest.fail("upstream was built"))
    with pytest.raises(PatchlaneError) as refused:
        session.train(Recipe(size="nam56r_tiny"), Run(), "all", [], stacks.named(), held_out=[], folder=tmp_path)
    assert str(tmp_path) in refused.value.what and refused.value.remedy.startswith("--out ")


def _started(tmp_path, monkeypatch, **plan):
    """A start that ends where upstream's code would be fetched."""
    monkeypatch.setattr(overlay, "build", lambda *_: pytest.fail("upstream was built"))
    data = plan.pop("data", [])
    recipe, run = Recipe(size="nam56r_tiny", sequence=64), Run(row=64)
    session.train(recipe, run, "all", data, stacks.named(), held_out=plan.pop("held_out", []), folder=tmp_path, **plan)


@pytest.mark.parametrize("way", [{"wandb": True}, {"project": "mine"}])
def test_wandb_that_is_not_installed(way, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    monkeypatch.setenv("WANDB_PROJECT", way.pop("project", ""))
    with pytest.raises(CannotTestHere) as refused:
        _started(tmp_path, monkeypatch, **way)
    assert "pip install wandb" in refused.value.remedy


def test_a_folder_that_another_run_writes(tmp_path, monkeypatch):
    held = metrics.claim(tmp_path)
    with pytest.raises(PatchlaneError) as refused:
        _started(tmp_path, monkeypatch)
    held.release()
    assert str(tmp_path) in refused.value.what and refused.value.remedy


def test_a_set_to_evaluate_on_that_fills_no_row(tmp_path, monkeypatch, text):
    bare = make_dataset(tmp_path, "bare", replace(BYTES, valid_percent=0)).folder
    with pytest.raises(PatchlaneError) as refused:
        _started(tmp_path / "run", monkeypatch, data=[str(text)], held_out=[f"own={bare}"])
    assert "own" in refused.value.what


def test_a_run_of_another_model(tmp_path, monkeypatch):
    (tmp_path / "checkpoints" / reading.name(3)).mkdir(parents=True)
    (tmp_path / "run.json").write_text(json.dumps({"size": SIZES["nam56r_quarter"].model_dump(mode="json")}))
    with pytest.raises(PatchlaneError) as refused:
        _started(tmp_path, monkeypatch)
    assert reading.name(3) in refused.value.what
