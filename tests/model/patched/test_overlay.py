"""Where the training stack's packs come from."""

import importlib
import sys
import types

import pytest
from toy import named

from model.patched import overlay
from model.patched.overlay import Overlay
from reproducers.base.errors import PatchlaneError
from reproducers.record import schema
from reproducers.upstream.store import Tree


def test_a_wheel_without_its_packs_is_told_to_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    with pytest.raises(PatchlaneError, match="no packs beside") as caught:
        overlay.chosen("all")
    assert "clone" in caught.value.remedy


def test_no_patches_need_no_packs(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    assert overlay.chosen("none") == []


def test_modules_come_from_real_names_where_the_store_holds_links(tmp_path, monkeypatch):
    """The watch that proves execution names files so: under a link's name nothing would be seen to run."""
    for name in overlay.WITHOUT_INIT:
        (tmp_path / "real" / name / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    trees = {name: Tree(tmp_path / "link" / name, "0" * 64, named(name)) for name in overlay.WITHOUT_INIT}
    fake = types.SimpleNamespace(path=list(sys.path), modules={})
    monkeypatch.setattr(overlay, "sys", fake)
    monkeypatch.setattr(Overlay, "root", lambda self, name: self.trees[name].path)
    monkeypatch.setattr(overlay.lane_megatron, "megatron_lane", lambda device: None)
    overlay.activate(Overlay("cpu", trees, trees, []))
    for name in overlay.WITHOUT_INIT:
        assert fake.modules[name].__path__ == [str(tmp_path.resolve() / "real" / name / name)]


def test_what_upstream_only_looks_for_is_not_there(monkeypatch):
    fake = types.SimpleNamespace(path=list(sys.path), modules={"peft": types.ModuleType("peft")})
    monkeypatch.setattr(overlay, "sys", fake)
    monkeypatch.setattr(overlay.lane_megatron, "megatron_lane", lambda device: None)
    monkeypatch.setattr(overlay, "WITHOUT_INIT", ())
    overlay.activate(Overlay("cpu", {}, {}, []))
    assert fake.modules == {"peft": None}
    with monkeypatch.context() as patch, pytest.raises(ModuleNotFoundError):
        patch.setitem(sys.modules, "peft", None)
        importlib.import_module("peft")


@pytest.mark.parametrize("state", ["draft", "reproduced"])
def test_all_leaves_out_what_was_never_validated_and_says_so(state, monkeypatch, caplog):
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack17": state})
    with caplog.at_level("INFO", logger="model.patched.overlay"):
        assert {pack.id for pack in overlay.chosen("all")} == set(everything()) - {"pack17"}
    assert f"pack17 is not validated yet ({state})" in caplog.text
    with pytest.raises(PatchlaneError, match="pack17"):
        overlay.chosen("pack17")


def test_all_refuses_what_was_validated_and_no_longer_is(monkeypatch):
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack17": "stale"})
    with pytest.raises(PatchlaneError, match="pack17"):
        overlay.chosen("all")


def everything() -> dict[str, str]:
    return {pack.id: "validated" for pack in overlay.candidates(schema.load_packs())}
