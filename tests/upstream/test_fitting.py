"""The needs of a tree that no pin names are those that its own metadata asks for."""

import datetime

import many_releases
import pytest
from toy import PUBLISHED, SOURCE, write_tree

from patchlane.base.errors import CannotTestHere
from reproducers.base.verdicts import Verdict
from reproducers.evidence import receipts, verification
from reproducers.record.origin import Origin
from reproducers.trial.experiment import Request, execute
from reproducers.upstream import fitting, index
from reproducers.upstream.index import Published
from reproducers.upstream.store import Store, Tree

NEEDS = """
dep-1: [{distribution: toydep, release: "1.0"}]
dep-2: [{distribution: toydep, release: "2.0"}]
rest: [{distribution: other, release: "1.0"}]
"""
RELEASES = """
toydep:
  "1.0": {{artifacts: {{{one}}}}}
  "2.0": {{artifacts: {{{two}}}}}
other:
  "1.0": {{artifacts: {{other-1.0-py3-none-any.whl: {zeros}}}}}
"""


@pytest.fixture
def needing(toy):
    """The toy with a live pin that needs toydep 2.0 and other 1.0; needs.yaml pins toydep 1.0 as well."""
    paths = [
        many_releases.wheel(toy.root / "index", "toydep", release, {"toydep.py": f"RELEASE = {release!r}\n"})
        for release in ("1.0", "2.0", "3.0")
    ]
    one, two = (f"{path.name}: {many_releases.sha256(path)}" for path in paths[:2])
    toy.publishes(PUBLISHED + RELEASES.format(one=one, two=two, zeros="a" * 64), NEEDS)
    pack = toy.pack()
    live = pack.pins["live"].model_copy(update={"needs": ["dep-2", "rest"]})
    return pack.model_copy(update={"pins": {"live": live}})


@pytest.fixture
def days(monkeypatch):
    """An index in which toyup 1.5 came out between toydep 1.0 and 2.0."""
    found = {"toyup": {"1.5": 5, "0.1": 0}, "toydep": {"1.0": 4, "2.0": 6, "3.0": 7, "4.0": 9}}

    def releases(distribution):
        return {
            release: Published(
                {f"{distribution}-{release}-py3-none-any.whl": "a" * 64}, datetime.date(2026, 1, 1 + day), False
            )
            for release, day in found[distribution].items()
        }

    monkeypatch.setattr(index, "releases", releases)


def tree_of(toy, *requires, release="1.5"):
    path = toy.root / "tree"
    text = "".join(f"Requires-Dist: {row}\n" for row in requires)
    write_tree(path, {"toyup-1.5.dist-info/METADATA": f"Metadata-Version: 2.1\nName: toyup\nVersion: 1.5\n{text}"})
    return Tree(path, "d" * 64, Origin(kind="release", distribution="toyup", release=release))


def chosen(toy, pack, *requires, offline=False, release="1.5"):
    sets, said = fitting.need_sets(pack, None, tree_of(toy, *requires, release=release), offline)
    return {need.distribution: need.release for needs in sets.values() for need in needs}, said


def test_a_pin_of_the_pack_has_its_own(toy, needing):
    pin = needing.pins["live"]
    sets, said = fitting.need_sets(needing, pin, tree_of(toy, "toydep==1.0"), True)
    assert (sets["dep-2"][0].release, said) == ("2.0", [])


def test_what_the_metadata_asks_for(toy, needing, days):
    live = {"toydep": "2.0", "other": "1.0"}
    assert chosen(toy, needing) == (live, [])
    assert chosen(toy, needing, "toydep==2.0", "else>1") == (live, [])
    found, said = chosen(toy, needing, "Toydep<2")
    assert found == {**live, "toydep": "1.0"} and "toydep 1.0 for 2.0: the tree requires <2" in said[0]
    assert chosen(toy, needing, "toydep<2; python_version < '3'", "toydep<2; extra == 'x'")[0] == live


def test_of_several_that_are_allowed_the_one_of_the_day(toy, needing, days):
    assert chosen(toy, needing, "toydep>=1")[0]["toydep"] == "1.0"
    assert chosen(toy, needing, "toydep>=1", release="0.1")[0]["toydep"] == "1.0"  # before all: the oldest
    assert chosen(toy, needing, "toydep>=1", release="unknown")[0]["toydep"] == "2.0"
    assert chosen(toy, needing, "toydep>=1", offline=True)[0]["toydep"] == "2.0"


def test_what_needs_yaml_does_not_pin_comes_from_the_index(toy, needing, days):
    assert chosen(toy, needing, "toydep>2")[0]["toydep"] == "4.0"  # none was out on the day
    with pytest.raises(CannotTestHere, match="toydep>9"):
        chosen(toy, needing, "toydep>9")


@pytest.mark.parametrize("broken", ["", "[project]\n", "[project]\ndependencies = 3\n", "not toml ["])
def test_a_checkout_says_it_in_pyproject(tmp_path, broken):
    write_tree(tmp_path, {"pyproject.toml": '[project]\ndependencies = ["toydep>=2", "not a requirement!"]\n'})
    assert {name: str(asked) for name, asked in fitting.requirements(tmp_path).items()} == {"toydep": ">=2"}
    write_tree(tmp_path, {"pyproject.toml": broken})
    assert fitting.requirements(tmp_path) == {}


def test_a_file_for_this_interpreter():
    assert fitting.has_file({"x-1-py3-none-any.whl": ""}) and fitting.has_file({"x-1.tar.gz": ""})
    assert not fitting.has_file({"x-1-cp27-cp27m-manylinux1_x86_64.whl": ""})


def test_a_release_runs_beside_what_it_asks_for_and_the_log_says_so(released):
    folder, core = released.root / "index", "from toydep import RELEASE\n\nassert RELEASE == '1.0', RELEASE\n"
    one, two = (many_releases.wheel(folder, "toydep", r, {"toydep.py": f"RELEASE = {r!r}\n"}) for r in ("1.0", "2.0"))
    lines = [f"{path.name}: {many_releases.sha256(path)}" for path in (one, two)]
    listed = RELEASES.format(one=lines[0], two=lines[1], zeros="a" * 64)
    pack = many_releases.pack(released, "dep-2", listed, NEEDS)
    files = {**SOURCE, "toyup/core.py": core + SOURCE["toyup/core.py"]}
    many_releases.wheel(folder, "toyup", "1.2", files, ["toydep<2"])
    many_releases.wheel(folder, "toyup", "1.4", files, ["toydep>=2"])
    for name in ("toyup", "toydep"):
        many_releases.page(folder, name)
    asked = [execute(pack, Request(at, arm="pristine"), Store(), lambda arm, line: None) for at in ("1.2", "1.4")]
    assert [run.ruling.verdict for run in asked] == [Verdict.REPRODUCED, Verdict.DIFFERENT_FAILURE]
    assert asked[0].log[0] == "[needs] toydep 1.0 for 2.0: the tree requires <2"
    assert not any(line.startswith("[needs]") for line in asked[1].log)
    receipts.write(asked[0], released.root / "out", "toy", [], {})
    assert verification.verify_all(released.root / "out") == {}
