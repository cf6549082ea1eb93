"""The file of fingerprints as a record."""

import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.record import fingerprint
from reproducers.record.fingerprint import Fingerprint, Fingerprints, KnownTree

TREE = KnownTree(name="1.0", release="1.0", state="fixed", code={"a.py:f": "0" * 16, "a.py:g": None})
KNOWN = Fingerprints(packs={"pack07": Fingerprint(distribution="toyup", package="toyup", trees=[TREE])})


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(KNOWN.text)
    assert fingerprint.load(path) == KNOWN
    assert KNOWN.packs["pack07"].functions == ["a.py:f", "a.py:g"]
    assert KNOWN.packs["pack07"].releases("fixed") == ["1.0"]
    assert KNOWN.packs["pack07"].releases("buggy") == []


@pytest.mark.parametrize(
    "text", ["", "[]", KNOWN.text.replace("fixed", "mended"), KNOWN.text.replace("0" * 16, "0" * 15)]
)
def test_a_damaged_file_is_refused_with_its_remedy(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(PatchlaneError) as refused:
        fingerprint.load(path)
    assert str(path) in refused.value.what and refused.value.remedy == f"git checkout HEAD -- {path}"


def test_a_missing_file(tmp_path):
    with pytest.raises(PatchlaneError) as refused:
        fingerprint.load(tmp_path / "x.json")
    assert refused.value.remedy.startswith("git checkout")
