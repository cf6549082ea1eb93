"""osv: a record for each real pack with a bug, as the format asks."""

import json

import pytest
from osv_format import OsvRecord
from typer.testing import CliRunner

from reproducers import osv
from reproducers.evidence import manifest
from reproducers.record.schema import ROOT, load_named, load_packs

SAMPLE = ["pack04", "pack09", "pack61"]  # without a bug, with releases, with commits alone


@pytest.fixture(params=[SAMPLE, pytest.param(None, marks=pytest.mark.site)], ids=["sample", "all"])
def packs(request, monkeypatch):
    chosen = load_named(request.param) if request.param else load_packs()
    monkeypatch.setattr(osv, "load_packs", lambda: chosen)
    return chosen


@pytest.fixture
def written(packs, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(osv.app, ["--output", str(out)])
    assert done.exit_code == 0, done.output
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def test_every_pack_with_a_bug_has_a_valid_record_of_what_the_manifest_says(packs, written):
    named = [pack for pack in packs if pack.names_bug]
    assert set(written) == {f"x_patchlane-{pack.number:02d}" for pack in named}
    for pack in named:
        found = written[f"x_patchlane-{pack.number:02d}"]
        OsvRecord.model_validate_json(json.dumps(found))
        (affected,) = found["affected"]
        tried = manifest.entry_of(pack, ROOT / "receipts").tried
        assert {tried[name] for name in affected["versions"]} <= {"REPRODUCED", "REPRODUCED_AND_FIXED"}, pack.id
        assert affected["versions"] or affected["ranges"], pack.id


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "x").write_text("mine")
    done = CliRunner().invoke(osv.app, ["--output", str(tmp_path)])
    assert done.exit_code != 0 and "--output " in done.exception.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
