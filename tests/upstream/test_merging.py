"""Several packs' patches in one tree: joined as git joins them, refused where they overlap."""

import pytest
from toy import FIRST, HEAD, RECORD, SOURCE, TOTAL, edited, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.record.origin import Origin
from reproducers.upstream import merging

LINES = [b"%d\n" % n for n in range(9)]


def changed(at, text):
    return b"".join([*LINES[:at], text, *LINES[at + 1 :]])


def test_changes_of_different_lines_are_joined():
    common = b"".join(LINES)
    joined = merging.merge_file(changed(1, b"one\n"), common, changed(7, b"seven\n"))
    assert joined == common.replace(b"1\n", b"one\n").replace(b"7\n", b"seven\n")


def test_changes_of_the_same_line_overlap():
    assert merging.merge_file(changed(1, b"one\n"), b"".join(LINES), changed(1, b"ONE\n")) is None


def test_a_file_that_both_make_alike_is_that_file():
    assert merging.merge_file(b"new\n", b"", b"new\n") == b"new\n"


@pytest.fixture
def merged(toy):
    """Merge packs of these edits, one pack each, into the toy's tree."""

    def merge(*edits):
        pristine = toy.store.tree(
            "trees",
            "toy",
            Origin(kind="release", distribution="toyup", release="1.0"),
            lambda root: write_tree(root, SOURCE),
        )
        packs = [
            toy.pack(
                HEAD + toy.patch(edited(edit)),
                record=RECORD.replace("number: 7", f"number: {number}"),
                folder=f"{number:02}_toy",
            )
            for number, edit in enumerate(edits, 7)
        ]
        applied = [merging.apply_alone(pristine, pack) for pack in packs]
        return merging.merge(toy.store, pristine, applied), merging.merged_images(pristine, applied)

    return merge


def test_packs_are_merged_into_one_tree(merged):
    tree, images = merged(TOTAL, FIRST)
    both = edited(TOTAL, FIRST)
    assert {name: (tree.path / name).read_text() for name in both} == both
    assert images == {name: merging.image(tree.path, name) for name in images}


def test_packs_that_change_the_same_lines_are_refused(merged):
    with pytest.raises(PatchlaneError) as caught:
        merged(TOTAL, (TOTAL[0], "values[0:]:"))
    assert "pack08" in caught.value.remedy
