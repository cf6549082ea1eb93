"""A carried patch as a pack's fix: in a pack's layout, marked where a person has to write, refused as any fix is."""

import pytest
from toy import SOURCE, TOTAL, diff, edited, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.growing import theirs
from reproducers.desk import unwritten
from reproducers.desk.patches.fields import origin_fault
from reproducers.upstream import patching

SHA = "1" * 40


def carried(tmp_path, text, **more):
    folder = write_tree(tmp_path / "q/01_one", {"carried.patch": text})
    upstream = Upstream(repo="toy/toyup", distribution="toyup")
    return Carried(upstream=upstream, base=Base(release="1.0"), subject="sum all", source="p", folder=folder, **more)


@pytest.mark.parametrize("prefix", ["", "toy-1.0/"])
def test_the_diff_is_in_a_packs_layout(tmp_path, prefix):
    text = diff(tmp_path, SOURCE, edited(TOTAL))
    plain = (
        text[text.index("--- ") :].replace("--- a/", f"--- {prefix and 'toy.orig/'}").replace("+++ b/", f"+++ {prefix}")
    )
    made = theirs(carried(tmp_path, plain))
    (tmp_path / "fix.patch").write_text(made.diff)
    tree = write_tree(tmp_path / "tree", SOURCE)
    assert patching.classify(tree, tmp_path / "fix.patch", 1).kind is patching.ApplyClass.CLEAN
    assert theirs(carried(tmp_path, text)).diff == text


@pytest.mark.parametrize("origin", [f"slime/slime@{SHA}", f"https://example.org/{SHA}/x.patch"])
def test_an_origin_that_states_a_commit_is_kept(tmp_path, origin):
    made = theirs(
        carried(tmp_path, diff(tmp_path, SOURCE, edited(TOTAL)), origin=origin, upstream_status="Denied [no]")
    )
    assert made.status == "Denied [no]" and unwritten.marks(made.origin) == [(1, "its licence")]
    assert origin_fault(unwritten.MARK.sub("MIT", made.origin)) == ""
    for said in ("theirs", "https://example.org/x.patch"):
        made = theirs(carried(tmp_path, diff(tmp_path, SOURCE, edited(TOTAL)), origin=said, upstream_status="soon"))
        assert len(unwritten.marks(made.origin)) == 2 and made.status == "Pending"


def test_what_no_fix_may_hold_is_refused_by_the_entrys_path(tmp_path):
    for text in ("import ctypes", "caf\xe9"):
        entry = carried(tmp_path, "")
        entry.patch.write_bytes(f"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+{text}\n".encode("latin-1"))
        with pytest.raises(PatchlaneError, match=r"q/01_one/carried\.patch"):
            theirs(Carried.model_validate({**entry.model_dump(), "folder": entry.folder}))
