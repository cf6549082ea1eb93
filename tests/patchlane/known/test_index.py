"""The index of known bugs as a record."""

import json

import pytest
from toy_environment import known

from patchlane.base.errors import PatchlaneError
from patchlane.known import index
from patchlane.known.index import KnownTree

TREE = KnownTree(name="1.0", release="1.0", state="fixed", code={"a.py:f": "0" * 16, "a.py:g": None})
KNOWN = known(TREE).index


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(KNOWN.text)
    assert index.load(path).index == KNOWN and index.load(path).folder == tmp_path
    assert KNOWN.packs["pack07"].functions == ["a.py:f", "a.py:g"]
    assert KNOWN.packs["pack07"].releases("fixed") == ["1.0"]
    assert KNOWN.packs["pack07"].releases("buggy") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (KNOWN.text, ""),
        (KNOWN.text, "[]"),
        ("fixed", "mended"),
        ("0" * 16, "0" * 15),
        ("07_toy", "../07_toy"),
        ("fix.patch", "../fix.patch"),
        ("toyup/core.py", "../../toyup/core.py"),
        ('"strip": 1', '"strip": "1"'),
        ('"strip": 1', '"strip": true'),
        ('"claim"', '"clam"'),
        ('"schema_version": 2', '"schema_version": 1'),
        ('"schema_version": 2', '"schema_version": 3'),
        ("2026-11-30", "30 November"),
        ('"packs"', '"date": "2026-11-30", "packs"'),
    ],
)
def test_a_damaged_file_is_refused_with_its_remedy(tmp_path, old, new):
    path = tmp_path / "x.json"
    path.write_text(KNOWN.text.replace(old, new))
    with pytest.raises(PatchlaneError) as refused:
        index.load(path)
    assert str(path) in refused.value.what and refused.value.remedy == f"git checkout HEAD -- {path}"


def test_a_missing_file(tmp_path):
    with pytest.raises(PatchlaneError) as refused:
        index.load(tmp_path / "x.json")
    assert refused.value.remedy.startswith("git checkout")


def test_a_field_that_a_pack_lacks_is_named(tmp_path):
    body = json.loads(KNOWN.text)
    del body["packs"]["pack07"]["title"]
    with pytest.raises(PatchlaneError) as refused:
        index.parsed(json.dumps(body).encode(), "x.json", "mend it")
    assert "packs.pack07.title" in refused.value.what and refused.value.remedy == "mend it"


def test_a_patch_that_the_index_does_not_speak_of_is_told(tmp_path):
    (tmp_path / "07_toy").mkdir()
    (tmp_path / "07_toy" / "fix.patch").write_text("another")
    path = tmp_path / "x.json"
    path.write_text(known().index.text)
    seen = index.load(path)
    assert seen.strange("pack07", "fix.patch") and index.file_sha256(seen.patch("pack07", "fix.patch")) != "0" * 64
