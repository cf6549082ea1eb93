"""How a tree is spelled, and when it is the tree of a pin."""

import pytest

from reproducers.record.origin import Built, Origin
from reproducers.record.schema import Pin

SHA = "a" * 40
RELEASE = Origin(kind="release", distribution="toyup", release="1.0")
COMMIT = Origin(kind="commit", sha=SHA)
BUILT = COMMIT.built_by(Built(command="make", source="c" * 64))


@pytest.mark.parametrize(
    ("origin", "spelled", "key"),
    [
        (RELEASE, "toyup 1.0", "1.0"),
        (RELEASE.of(None).on(2).on(13), "1.0 + 02 + 13", "1.0 + 02 + 13"),
        (COMMIT, f"git {SHA}", SHA),
        (COMMIT.of("toyup"), f"toyup git {SHA}", SHA),
        (COMMIT.model_copy(update={"dirty": True}), f"git {SHA} (dirty)", SHA),
        (BUILT.of("toyup"), f"toyup git {SHA} (built)", f"{SHA} (built)"),
        (Origin(kind="folder", name="clone"), "folder clone", "clone"),
        (Origin(kind="made", name="needs tilelang"), "needs tilelang", "needs tilelang"),
    ],
)
def test_spelled(origin, spelled, key):
    assert (str(origin), origin.key) == (spelled, key)


@pytest.mark.parametrize(
    ("origin", "pin", "same"),
    [
        (RELEASE, {"release": "1.0"}, True),
        (RELEASE, {"release": "1.1"}, False),
        (RELEASE.of("other"), {"release": "1.0"}, False),
        (RELEASE.on(2), {"release": "1.0"}, False),
        (RELEASE.on(2), {"release": "1.0", "stacked_on": [2]}, True),
        (COMMIT, {"sha": SHA}, True),
        (COMMIT, {"release": "1.0", "sha": SHA}, True),  # the commit that the release was cut from
        (COMMIT.of("other"), {"sha": SHA}, False),
        (COMMIT.model_copy(update={"dirty": True}), {"sha": SHA}, False),
        (BUILT, {"sha": SHA}, False),  # more than the commit
        (BUILT.unbuilt, {"sha": SHA}, True),
        (Origin(kind="folder", name="1.0"), {"release": "1.0"}, False),
    ],
)
def test_the_tree_of_a_pin(origin, pin, same):
    artifacts = {"artifacts": {"toyup-1.0.tar.gz": "b" * 64}} if "release" in pin else {}
    assert Pin(**pin, **artifacts).names(origin, "toyup") is same


def test_a_pin_spells_its_tree():
    files = {"toyup-1.0.tar.gz": "b" * 64}
    assert str(Pin(release="1.0", sha=SHA, artifacts=files, stacked_on=[8]).origin) == "1.0 + 08"
    assert str(Pin(sha=SHA).origin) == f"git {SHA}"
