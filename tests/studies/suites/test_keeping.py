"""Records of upstream's tests: what is written is read again, and every change of it is named."""

import hashlib
import json

import pytest
from own_tests import BROKEN, ONE, examined, publish_tests
from toy import Toy

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import record_bytes
from reproducers.evidence import shelf, verification
from reproducers.studies.suites import keeping

BREAKS = BROKEN + ONE[ONE.index("\n\n\n") :]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(the toy, a record of its tests, of which its patch breaks one); made once, never changed."""
    toy = Toy(tmp_path_factory.mktemp("made"))
    pack = toy.pack()
    toy.publish()
    publish_tests(toy, {"tests/test_core.py": BREAKS})
    return toy, keeping.record(examined(toy, pack), "toy-1", ["pack07"])


@pytest.fixture
def kept(made, tmp_path, monkeypatch):
    """(folder, record's path, record)."""
    toy, found = made
    monkeypatch.setattr(verification, "ROOT", toy.root)
    monkeypatch.setattr(shelf, "COMMITTED", tmp_path / "committed")
    return tmp_path / "made", keeping.write(found, tmp_path / "made", str), found


def put(path, change):
    """The record with one field changed, under the name that its new content gives."""
    body = json.loads(path.read_text())
    change(body)
    data = record_bytes(body)
    there = path.with_name(f"{path.stem.rpartition('_')[0]}_{hashlib.sha256(data).hexdigest()[:12]}.json")
    there.write_bytes(data)
    return there


def test_a_record_is_read_as_it_was_written(kept):
    root, path, found = kept
    assert keeping.read(path) == found and keeping.every(root) == [path] and keeping.faults(path) == []
    assert path.parent.name == "07" and "_toy-1_" in path.name
    assert keeping.write(found, root, str) == path
    assert [row.compared for row in found.outcomes] == ["broken", "passed both"]
    assert keeping.broken(root) == [f"pack07 live cpu: {found.reason}"]


def test_no_receipt_is_made_of_it(kept):
    root, path, _ = kept
    assert shelf.every(root) == [] and verification.verify_all(root) == {}
    path.with_name("other.json").write_text("{}")
    assert [fault.name for fault in verification.verify_all(root)] == ["other.json"]


def say_passed(body):
    body["outcomes"][0]["compared"] = "passed both"


def say_none_broken(body):
    del body["verdict"]


def say_it_passed_again(body):
    body["outcomes"][0]["again"][1] = {"outcome": "passed"}


def say_another_host(body):
    body["host"]["alias"] = "toy-2"


def say_more(body):
    body["more"] = 1


def drop_a_test(body):
    del body["outcomes"][1]


def add_a_test(body):
    body["outcomes"].append(body["outcomes"][1] | {"test": f"{body['outcomes'][1]['test']}_more"})


def tell_a_test_twice(body):
    body["outcomes"].append(body["outcomes"][1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_a_test, "it tells of 1 test in tests/test_core.py, its runs counted 2 and 2"),
        (add_a_test, "it tells of 3 tests"),
        (tell_a_test_twice, "twice"),
        (say_passed, "test_first passed both, its outcomes give broken"),
        (say_none_broken, "it states that none is broken"),
        (say_it_passed_again, "its outcomes give flaky"),
        (say_another_host, "which is not its place"),
        (say_more, "it is malformed: more"),
    ],
)
def test_what_was_changed_is_named(kept, change, said):
    forged = put(kept[1], change)
    rows = keeping.faults(forged)
    assert said in " ".join(rows)
    with pytest.raises(PatchlaneError, match="git checkout"):
        keeping.read(forged)
    assert keeping.all_faults(kept[0]) == {forged: rows}


def test_an_altered_byte_and_another_name(kept):
    root, path, _ = kept
    path.write_text(path.read_text().replace('"seconds": ', '"seconds":  '))
    assert "it was altered" in keeping.faults(path)[0] and keeping.broken(root) == []
    other = path.rename(path.with_name("upstream-tests_other.json"))
    assert "its name is not" in keeping.faults(other)[0]


def test_records_of_another_host_are_taken_once_and_whole(kept, tmp_path):
    root, path, _ = kept
    target = tmp_path / "receipts"
    assert [one.name for one in keeping.take(root, target)] == [path.name] and keeping.take(root, target) == []
    assert (target / "07" / path.name).read_bytes() == path.read_bytes()
    put(path, say_passed)
    with pytest.raises(PatchlaneError, match="its outcomes give broken"):
        keeping.take(root, tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_this_machine_is_not_named(toy, monkeypatch):
    monkeypatch.setattr(keeping.platform, "node", lambda: "secret-node")
    redact = keeping.redactor(toy.store, None)
    assert redact(f"{toy.store.root}/x on secret-node:29500") == "<store>/x on <host>:29500"


def test_a_record_of_the_future_is_named(kept):
    root, _, found = kept
    path = keeping.write(found.model_copy(update={"started": "2099-01-01T00:00:00Z"}), root, str)
    assert keeping.faults(path) == ["its day is in the future: 2099-01-01"]


@pytest.mark.parametrize("spelled", [lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")])
def test_a_record_has_one_reading(kept, spelled):
    _, path, _ = kept
    data = spelled(path.read_bytes())
    forged = path.with_name(f"{path.stem.rpartition('_')[0]}_{hashlib.sha256(data).hexdigest()[:12]}.json")
    forged.write_bytes(data)
    assert len(keeping.faults(forged)) == 1
