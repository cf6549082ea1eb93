"""osv: a record for each real pack with a bug, all as the format asks."""

import json

import pytest
from osv_format import OsvRecord
from typer.testing import CliRunner

from reproducers import osv
from reproducers.evidence import manifest
from reproducers.record.schema import ROOT, load_packs


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("osv") / "out"
    done = CliRunner().invoke(osv.app, ["--output", str(out)])
    assert done.exit_code == 0, done.output
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


def test_every_pack_with_a_bug_has_a_valid_record(written):
    assert set(written) == {f"x_patchlane-{pack.number:02d}" for pack in load_packs() if pack.names_bug}
    for found in written.values():
        OsvRecord.model_validate_json(json.dumps(found))


def test_versions_are_those_that_the_manifest_says_are_broken(written):
    for pack in load_packs():
        if pack.names_bug:
            (affected,) = written[f"x_patchlane-{pack.number:02d}"]["affected"]
            tried = manifest.entry_of(pack, ROOT / "receipts").tried
            assert {tried[name] for name in affected["versions"]} <= {"REPRODUCED", "REPRODUCED_AND_FIXED"}, pack.id


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "x").write_text("mine")
    done = CliRunner().invoke(osv.app, ["--output", str(tmp_path)])
    assert done.exit_code != 0 and "--output " in done.exception.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
