"""Fixtures shared by all tests: the toy upstream and its pack, in a temporary folder."""

import hashlib
import shutil

import many_releases
import pytest
import ready
import tiers
from toy import Toy, package_index, wheel

from reproducers import approve, preflight
from reproducers.desk.start import known
from reproducers.evidence import shelf, verification
from reproducers.kept import archive
from reproducers.record import schema
from reproducers.record.receipt import Statement


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items):
    """Marks what trains and what `make test` leaves out, and puts all in order."""
    for item in items:
        if "stack" in item.fixturenames:
            item.add_marker("train")
        given = getattr(item, "callspec", None)
        pack = given.params.get("pack") if given else None
        if tiers.rests({mark.name for mark in item.iter_markers()}, pack, item.path.name):
            item.add_marker("rest")
        if pack is not None and item.get_closest_marker("pack") and "cpu" in pack.lanes and tiers.proved(pack):
            item.add_marker("proved")
    # packs first, or one would run alone at the end; what is long last, for it is skipped first when time is over
    items.sort(key=lambda item: (item.path.name != "test_packs.py", item.get_closest_marker("long") is not None))


def pytest_runtest_setup(item):
    if item.get_closest_marker("rest") and tiers.over():
        pytest.skip("the time of PATCHLANE_TESTS_END is over: make test-all runs it")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A toy upstream with two bugs, a packs folder, a store and receipts, none of them shared."""
    monkeypatch.setattr(shelf, "COMMITTED", tmp_path / "committed")
    return Toy(tmp_path)


@pytest.fixture
def index_url(tmp_path, monkeypatch):
    """The address of a package index that has toyup 1.0 and nothing else; ours asks it, and no host of repositories."""
    monkeypatch.setattr(known, "HOST", str(tmp_path / "hosted"))
    wheel(tmp_path / "index")
    with package_index(tmp_path / "index") as url:
        for name, value in {"PIP_INDEX_URL": url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("PATCHLANE_OFFLINE", raising=False)
        yield url


@pytest.fixture
def believed(monkeypatch):
    """Receipts are read as they stand: for what is read from receipts that a test wrote or changed by hand."""

    def check(path, log):
        data = archive.data(path)
        return verification.Checked(Statement.of(data), hashlib.sha256(data).hexdigest(), [])

    monkeypatch.setattr(verification, "_check", check)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """The toy with a pack to which only an approval is wanting; made once, never changed."""
    made = Toy(tmp_path_factory.mktemp("prepared"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "COMMITTED", made.root / "committed")
        ready.receipt(made, ready.write_pack(made))
    return made


@pytest.fixture
def desk(toy, prepared, monkeypatch):
    """A copy of the prepared toy, which the verbs take for the project."""
    pytest.importorskip("cmarkgfm")
    shutil.copytree(prepared.root, toy.root, dirs_exist_ok=True)
    monkeypatch.setattr(schema, "ROOT", toy.root)
    monkeypatch.setattr(preflight, "today", lambda: ready.DAY)
    monkeypatch.setattr(approve, "today", lambda: ready.DAY)
    monkeypatch.setattr(verification, "today", lambda: ready.DAY)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    return toy


@pytest.fixture
def released(toy, tmp_path, monkeypatch):
    """The toy for the project, its releases of ``many_releases`` on an index that ours asks; nothing else is there."""
    monkeypatch.setattr(schema, "ROOT", toy.root)
    monkeypatch.setenv("PATCHLANE_STORE", str(toy.root / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    many_releases.pack(toy)
    for release, files in many_releases.RELEASES.items():
        many_releases.wheel(tmp_path / "index", "toyup", release, files)
    with package_index(tmp_path / "index") as url:
        for name, value in {"PIP_INDEX_URL": url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("PATCHLANE_OFFLINE", raising=False)
        yield toy
