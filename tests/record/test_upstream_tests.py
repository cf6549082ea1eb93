"""The committed list of upstream's test files, and what a list may not say."""

import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import ROOT, load_packs
from reproducers.record.upstream_tests import listed

LISTED = listed(ROOT / "packs")


def test_every_pack_with_a_patch_is_listed():
    assert set(LISTED) == {pack.number for pack in load_packs() if pack.patch.is_file()}


def test_every_lane_of_a_pack_names_a_file_once():
    for files in LISTED.values():
        named = [(file.path, lane) for file in files for lane in file.lanes]
        assert named and len(set(named)) == len(named)


def test_no_list_is_an_empty_one(tmp_path):
    assert listed(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1:\n- path: /etc/test_a.py\n", "yaml:2: 1.0.path"),
        ("1:\n- path: a/../test_a.py\n", "yaml:2: 1.0.path"),
        ("1:\n- path: a/notes.txt\n", "yaml:2: 1.0.path"),
        ("1:\n- {path: test_a.py, lanes: []}\n", "lanes"),
        ("1:\n- {path: test_a.py, lane: cpu}\n", "lane: Extra inputs"),
        ("x:\n- path: test_a.py\n", "x"),
    ],
)
def test_what_is_no_list_is_refused_by_line(tmp_path, text, said):
    (tmp_path / "upstream_tests.yaml").write_text(text)
    with pytest.raises(PatchlaneError, match=said):
        listed(tmp_path)
