"""osv: a record for each real pack with a bug, as the format asks."""

import hashlib
import json

import pytest
from osv_format import OsvRecord
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere
from reproducers import osv
from reproducers.evidence import manifest
from reproducers.record.schema import ROOT, load_named, load_packs
from reproducers.upstream import index

# the format's own schema, as a wheel on the index has it; that one is of before there were ids that begin with x_
WHEEL, MEMBER = "osv-0.0.22-py3-none-any.whl", "osv/osv-schema/validation/schema.json"
SHA256 = "b769e23a12078b258ef4d2410f036eedbf23e84815e76f29aa358e43b0bd2a0d"
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


@pytest.mark.site
@pytest.mark.parametrize("packs", [None], indirect=True)
def test_the_formats_own_schema_takes_each_record(written):
    jsonschema = pytest.importorskip("jsonschema")
    try:
        with index.parts("osv", WHEEL) as found:
            data = found.wheel.read(MEMBER)
    except CannotTestHere as error:
        pytest.skip(str(error))
    assert hashlib.sha256(data).hexdigest() == SHA256
    schema = json.loads(data)
    schema["$defs"]["prefix"] = {"type": "string"}
    validator = jsonschema.Draft202012Validator(schema)
    assert {name: [fault.message for fault in validator.iter_errors(one)] for name, one in written.items()} == {
        name: [] for name in written
    }
    (first, *_) = written.values()
    assert [*validator.iter_errors(first | {"affected": [{"package": {"name": "x"}}]})]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "x").write_text("mine")
    done = CliRunner().invoke(osv.app, ["--output", str(tmp_path)])
    assert done.exit_code != 0 and "--output " in done.exception.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
