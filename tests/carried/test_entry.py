"""Carried entries as they are kept: theirs byte for byte, whole or not at all, and each fault by its line."""

import pytest
from toy import write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried import entry
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.patches.mails import Given

PATCH = b"caf\xe9\r\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-two\n+three\n"


@pytest.fixture
def queue(tmp_path):
    made = []
    for number in range(1, 12):
        one = Carried(
            upstream=Upstream(repo="a/b", distribution="b"),
            base=Base(release="1.0"),
            subject=f"Zoë {number}",
            source="p",
            folder=f"{number:02d}_p",
        )
        made.append((Given("p", PATCH), one))
    return entry.write(tmp_path, "ours", made)


def test_what_is_written_is_read(tmp_path, queue):
    assert [one.subject for one in queue] == [f"Zoë {number}" for number in range(1, 12)]
    assert (tmp_path / "ours/03_p/carried.patch").read_bytes() == PATCH
    assert [one.id for one in entry.load(str(tmp_path / "ours/03_p"))] == ["03_p"]
    assert queue[0].diff.files[0].path == "x.py" and queue[0].origin == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_a_queue_is_never_written_over(tmp_path, queue):
    with pytest.raises(PatchlaneError, match="is there already"):
        entry.write(tmp_path, "ours", [])


def test_faults(tmp_path, queue):
    record = tmp_path / "ours/03_p/carry.yaml"
    text = record.read_text()
    record.write_text(text.replace("subject:", "subjekt:"))
    with pytest.raises(PatchlaneError, match=r"carry.yaml:\d+: subjekt"):
        entry.load(str(tmp_path / "ours"))
    record.write_text(text.replace("'1.0'", "'1.1'"))
    with pytest.raises(PatchlaneError, match="several"):
        entry.load(str(tmp_path / "ours"))
    with pytest.raises(PatchlaneError, match="no carried patch"):
        entry.load(str(write_tree(tmp_path / "none", {"x": ""})))


def test_a_pack_is_no_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "FOLDER", write_tree(tmp_path, {"ours/x": "", "05/x": ""}))
    assert [entry.is_queue(name) for name in ("ours", "05", "pack05", "none", str(tmp_path))] == [
        True,
        False,
        False,
        False,
        True,
    ]
