"""What the manifest says of a release after its pristine arm alone was run again."""

from toy import FIRST, TOTAL, edited

from reproducers.evidence import receipts
from reproducers.evidence.manifest import affected


def test_the_pristine_arm_takes_nothing_from_the_patch(toy, monkeypatch):
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    pack = toy.pack()
    runs = [toy.run(pack), toy.run(pack, arm="pristine"), toy.run(pack, edited(TOTAL, FIRST), arm="pristine")]
    paths = [receipts.write(run, toy.root / "out", "toy", [], {}) for run in runs]
    words = [[word.value for word in affected(pack, paths[: count + 1]).values()] for count in range(3)]
    assert words == [["REPRODUCED_AND_FIXED"], ["REPRODUCED_AND_FIXED"], ["FIXED_UPSTREAM"]]
    assert [*affected(pack, paths[1:2]).values()] == ["REPRODUCED"]
