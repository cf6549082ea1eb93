"""Where the training stack's packs come from."""

import types

import pytest

from model.patched import overlay, stacks
from model.patched.overlay import Overlay
from patchlane.base.errors import PatchlaneError
from reproducers.record import schema
from reproducers.upstream.store import Tree


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An installation without packs, whose stacks nobody has read."""
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    stacks.load.cache_clear()
    yield tmp_path
    stacks.load.cache_clear()


def test_a_wheel_without_its_packs_is_told_to_clone(wheel):
    with pytest.raises(PatchlaneError, match=str(wheel)) as caught:
        overlay.chosen("all")
    assert "clone" in caught.value.remedy


def test_the_model_has_the_packs_that_it_needs(monkeypatch):
    monkeypatch.setattr(overlay, "states", everything)
    assert [pack.number for pack in overlay.chosen("none")] == [42, 43]


@pytest.mark.parametrize(("patches", "packs"), [("none", {36, 41, 42, 43}), ("37,16", {16, 36, 37, 41, 42, 43})])
def test_a_checkpoint_has_the_packs_that_it_needs(patches, packs, monkeypatch):
    monkeypatch.setattr(overlay, "states", everything)
    assert {pack.number for pack in overlay.chosen(patches, checkpoints=True)} == packs
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack36": "stale"})
    with pytest.raises(PatchlaneError, match="pack36") as caught:
        overlay.chosen(patches, checkpoints=True)
    assert "--set save_every=0" in caught.value.remedy and "--patches" not in caught.value.remedy


def test_what_was_asked_for_is_not_spared_by_what_was_not(monkeypatch):
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack16": "stale", "pack40": "stale"})
    with pytest.raises(PatchlaneError) as caught:
        overlay.chosen("16", checkpoints=True)
    assert "--patches" in caught.value.remedy and "save_every" not in caught.value.remedy
    with pytest.raises(PatchlaneError) as caught:
        overlay.chosen("none", graphs=True)
    assert "without --cuda-graphs" in caught.value.remedy and "--patches" not in caught.value.remedy


def test_cuda_graphs_have_the_pack_that_they_need_or_are_refused(monkeypatch):
    monkeypatch.setattr(overlay, "states", everything)
    assert {pack.number for pack in overlay.chosen("none", graphs=True)} == {40, 42, 43}
    able = overlay.candidates
    monkeypatch.setattr(overlay, "candidates", lambda *args: [pack for pack in able(*args) if pack.number != 40])
    with pytest.raises(PatchlaneError, match="pack 40") as caught:
        overlay.chosen("all", graphs=True)
    assert "--cuda-graphs" in caught.value.remedy


@pytest.fixture
def activated(tmp_path, monkeypatch):
    """A process's modules after an overlay was activated whose trees the store holds as links."""
    fake = types.SimpleNamespace(path=[], modules={})
    for name in ("mamba_ssm", "liger_kernel"):
        (tmp_path / "real" / name / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    trees = {name: Tree(tmp_path / "link" / name, "0" * 64, name) for name in ("mamba_ssm", "liger_kernel")}
    monkeypatch.setattr(overlay, "sys", fake)
    monkeypatch.setattr(Overlay, "root", lambda self, name: self.trees[name].path)
    monkeypatch.setattr(overlay.megatron, "megatron_lane", lambda device: None)
    overlay.activate(Overlay("cpu", trees, trees, []))
    return fake


def test_modules_come_from_real_names_where_the_store_holds_links(activated, tmp_path):
    """The watch that proves execution names files so: under a link's name nothing would be seen to run."""
    real = tmp_path.resolve() / "real"
    assert activated.path == [str(real / "mamba_ssm"), str(real / "liger_kernel")]


@pytest.mark.parametrize("state", ["draft", "reproduced"])
def test_all_leaves_out_what_was_never_validated_and_says_so(state, monkeypatch, caplog):
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack17": state})
    with caplog.at_level("INFO", logger="model.patched.overlay"):
        assert {pack.id for pack in overlay.chosen("all")} == set(everything()) - {"pack17"}
    assert [record.args for record in caplog.records] == [("pack17", state)]
    with pytest.raises(PatchlaneError, match="pack17"):
        overlay.chosen("pack17")


def test_all_but_some(monkeypatch):
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack17": "stale"})
    assert {pack.id for pack in overlay.chosen("all,-17,-5")} == set(everything()) - {"pack05", "pack17"}
    assert {pack.number for pack in overlay.chosen("all,-17,-42")} >= {42}  # which the model needs
    with pytest.raises(PatchlaneError, match="pack999"):
        overlay.chosen("all,-pack999")


def test_all_leaves_out_a_pack_that_the_manifest_does_not_know(monkeypatch):
    known = everything()
    monkeypatch.setattr(overlay, "states", lambda: {name: state for name, state in known.items() if name != "pack17"})
    assert {pack.id for pack in overlay.chosen("all")} == set(known) - {"pack17"}


def test_all_refuses_what_was_validated_and_no_longer_is(monkeypatch):
    monkeypatch.setattr(overlay, "states", lambda: everything() | {"pack17": "stale"})
    with pytest.raises(PatchlaneError, match="pack17"):
        overlay.chosen("all")


def everything() -> dict[str, str]:
    return {pack.id: "validated" for pack in overlay.candidates(schema.load_packs())}
