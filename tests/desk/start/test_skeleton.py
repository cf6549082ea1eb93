"""What a new pack's files hold, and that nothing is written where they cannot be right."""

import ast
import datetime
import errno
import hashlib
from pathlib import Path

import pytest
from toy import RECORD, write_tree

from reproducers.base.errors import CannotTestHere, PatchlaneError
from reproducers.base.verdicts import Exit, Verdict
from reproducers.desk.rules.engine import examine
from reproducers.desk.start import mutants, skeleton
from reproducers.desk.start.skeleton import Wanted, create, marks
from reproducers.record.schema import load_pack
from reproducers.trial.experiment import Request, execute
from reproducers.upstream import index

TODAY = datetime.date(2026, 11, 22)
NEW = Wanted("toy_total", "toy/toyup", "1.0")
FILES = ["body.md.j2", "fix.patch", "mutants/hasty.patch", "notes.md", "pack.yaml", "reproducer.py"]


@pytest.fixture
def packs(tmp_path):
    """An empty folder of packs."""
    folder = tmp_path / "packs"
    folder.mkdir()
    return folder


def test_a_new_pack_is_valid_and_has_what_can_be_known(packs, index_url):
    files = create(NEW, packs, TODAY)
    folder = packs / "01_toy_total"
    assert [path.relative_to(folder).as_posix() for path in files] == FILES and all(map(Path.is_file, files))
    assert [path.name for path in packs.iterdir()] == [folder.name]
    pack = load_pack(folder)
    wheel = packs.parent / "index" / "toyup-1.0-py3-none-any.whl"
    assert pack.pins["live"].artifacts == {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}
    assert (pack.upstream.distribution, pack.upstream.package, pack.id) == ("toyup", "toyup", "pack01")
    assert pack.upstream_state.search.date == TODAY < pack.review_by
    source = pack.reproducer.read_text()
    assert '# dependencies = ["toyup==1.0"]\n' in source
    assert next(node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)) == "minimal"
    patch = pack.patch.read_text()
    assert "\nPack: 01\n" in patch and "\nApplies-To: toyup 1.0 (" in patch


def test_what_is_left_to_write_is_said_by_run_and_by_lint(toy, packs, index_url):
    create(NEW, packs, TODAY)
    pack = load_pack(packs / "01_toy_total")
    toy.publish(key=next(iter(pack.pins["live"].artifacts.values())))
    run = execute(pack, Request(), toy.store, lambda arm, line: None)
    assert run.ruling.verdict is Verdict.UNTESTABLE and marks(run.ruling.reason)
    assert run.ruling.remedy.startswith(skeleton.PAGE)
    faults = examine([pack], toy.root / "receipts", toy.store.root, TODAY).faults
    assert {fault.rule for fault in faults} == {"pack-unwritten", "pack-mutants"}
    left = {fault.file.partition("_toy_total/")[2] for fault in faults if fault.rule == "pack-unwritten"}
    assert left == set(FILES)


def test_a_report_has_no_fix(packs, index_url):
    files = create(Wanted("toy_total", "toy/toyup", "1.0", kind="report"), packs, TODAY)
    pack = load_pack(packs / "01_toy_total")
    assert pack.kind == "report" and not pack.patch.exists() and not mutants.paths(pack)
    assert not any("block fix" in path.read_text() for path in files)


def test_a_release_that_another_pack_pins_is_not_asked_of_the_index(toy, monkeypatch):
    monkeypatch.setattr(index, "release_files", lambda *asked: pytest.fail("the index was asked"))
    other = toy.pack()
    create(NEW, toy.packs, TODAY)
    pack = load_pack(toy.packs / "08_toy_total")
    assert (pack.pins["live"], pack.upstream) == (other.pins["live"], other.upstream)
    assert f"toyup 1.0 ({other.pins['live'].sha})" in pack.patch.read_text()


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("toy", "toy/toyup", "1.0"),
        Wanted("other", "toy/toyup", "1.0", number=7),
        Wanted("Toy-2", "toy/toyup", "1.0"),
        Wanted("../other", "toy/toyup", "1.0"),
        Wanted("other", "toyup", "1.0"),
        Wanted("other", "https://github.com/toy/toyup", "1.0"),
        Wanted("other", "toy/toyup", "1.0", package="toy-up"),
        Wanted("other", "toy/toyup", "1.0", kind="guard"),
        Wanted("other", "toy/toyup", "9.9"),
        Wanted("other", "toy/toyup", "1.0", distribution="no-such-toy"),
    ],
    ids=lambda wanted: f"{wanted.slug} {wanted.repo} {wanted.release} {wanted.kind}",
)
def test_what_cannot_be_is_refused_and_nothing_written(toy, index_url, wanted):
    toy.pack(record=RECORD)
    before = sorted(toy.packs.rglob("*"))
    with pytest.raises(PatchlaneError) as refused:
        create(wanted, toy.packs, TODAY)
    assert refused.value.exit_code == Exit.USAGE and refused.value.remedy
    assert sorted(toy.packs.rglob("*")) == before


def test_offline_is_refused_with_the_remedy(packs, monkeypatch):
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    with pytest.raises(CannotTestHere) as refused:
        create(NEW, packs, TODAY)
    assert refused.value.exit_code == Exit.CANNOT_TEST and refused.value.remedy and not list(packs.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written_is_said_and_left_as_it_was(packs, index_url, monkeypatch, number):
    real = Path.write_text

    def refuse(path, *args, **more):
        if path.name == "pack.yaml":
            raise OSError(number, "refused", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(PatchlaneError) as refused:
        create(NEW, packs, TODAY)
    assert refused.value.remedy and not list(packs.iterdir())


def test_numbers_are_never_reused(packs, index_url):
    write_tree(packs, {"17_a/pack.yaml": "", "33_b/notes.md": "", "README.md": ""})
    assert create(NEW, packs, TODAY)[0].parent.name == "34_toy_total"


@pytest.mark.parametrize(
    ("filename", "usable"),
    [
        ("toyup-1.0-py3-none-any.whl", True),
        ("toyup-1.0-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl", True),
        ("toyup-1.0-cp38-abi3-manylinux2014_x86_64.whl", True),
        ("toyup-1.0-cp312-cp312-manylinux2014_aarch64.whl", False),
        ("toyup-1.0-cp39-cp39-manylinux2014_x86_64.whl", False),
        ("toyup-1.0-cp312-cp312-win_amd64.whl", False),
        ("toyup-1.0.tar.gz", False),
    ],
)
def test_wheels_for_linux_are_taken_and_without_one_the_sdist(packs, monkeypatch, filename, usable):
    known = {filename: "a" * 64, "toyup-1.0.zip": "b" * 64}
    monkeypatch.setattr(index, "release_files", lambda *asked: known)
    create(NEW, packs, TODAY)
    pinned = load_pack(packs / "01_toy_total").pins["live"].artifacts
    assert list(pinned) == ([filename] if usable else [name for name in known if not name.endswith(".whl")])
