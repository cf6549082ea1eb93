"""The toy upstream's own tests, put where a pack's are taken from, and run on both trees."""

from toy import Toy, write_tree

from reproducers.record.schema import Pack
from reproducers.studies.suites.examination import Asked, Examination, Examiner
from reproducers.upstream.store import tree_digest

SHA = "a" * 40  # of the toy's pin
ONE = "from toyup import core\n\n\ndef test_mean():\n    assert core.mean([1, 3]) == 2\n"
BROKEN = """import pytest
from toyup import core


def test_first():
    with pytest.raises(ValueError):
        core.first([])
"""


def publish_tests(toy: Toy, files: dict[str, str]) -> None:
    """Put upstream's repository at the pin's commit into the store, as if it had been exported."""
    folder = toy.store.root / "trees" / f"tests-{SHA}"
    digest = tree_digest(write_tree(folder, files))
    folder.with_name(f"{folder.name}.json").write_text(f'{{"digest": "{digest}"}}')


def examined(toy: Toy, pack: Pack, *tests: str, timeout_s: float = 10.0, said: list[str] | None = None) -> Examination:
    """The files named, or those that the pack has, on both trees; ``said`` gets the lines of progress."""
    lines = said if said is not None else []
    asked = Asked(tests=tests, timeout_s=timeout_s)
    return Examiner(toy.store, asked, lambda text: text, lines.append).examine(pack)
