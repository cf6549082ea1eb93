"""What a new pack's files hold, and that nothing is written where they cannot be right."""

import ast
import datetime
import errno
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from toy import PUBLISHED, RECORD, git, wheel, write_tree

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers.base.verdicts import Verdict
from reproducers.desk.attachment import export
from reproducers.desk.rules.engine import examine
from reproducers.desk.start import known as known_of
from reproducers.desk.start import mutants, skeleton
from reproducers.desk.start.skeleton import Wanted, create
from reproducers.desk.unwritten import marks
from reproducers.record.schema import ROOT, load_pack
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
    assert sorted(path.name for path in packs.iterdir()) == [folder.name, "numbers.yaml", "releases.yaml"]
    pack = load_pack(folder)
    wheel = packs.parent / "index" / "toyup-1.0-py3-none-any.whl"
    assert pack.pins["live"].artifacts == {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}
    assert (pack.upstream.distribution, pack.upstream.package, pack.id) == ("toyup", "toyup", "pack01")
    assert pack.upstream_state.search.date == TODAY < pack.review_by
    source = pack.reproducer.read_text()
    assert '# dependencies = ["toyup"]\n' in source
    assert '"toyup==1.0"' in export.completed(source, pack)
    assert next(node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)) == "minimal"
    patch = pack.patch.read_text()
    assert "\nPack: 01\n" in patch


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
        Wanted("other", "toy/toyup", "1.0", kind="other"),
        Wanted("other", "toy/toyup", "1.0", kind="guard", fixed="9.9"),
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


def test_a_number_that_only_the_list_or_receipts_have_is_taken(packs, index_url):
    write_tree(packs, {"numbers.yaml": "7: gone_from_here\n", "03_a/notes.md": ""})
    write_tree(packs.parent, {"receipts/09/x.json": "{}"})
    with pytest.raises(PatchlaneError) as refused:
        create(Wanted("other", "toy/toyup", "1.0", number=7), packs, TODAY)
    assert refused.value.exit_code == Exit.USAGE and "gone_from_here" in refused.value.what
    folder = create(NEW, packs, TODAY)[0].parent
    assert folder.name == "10_toy_total"
    shutil.rmtree(folder)  # a draft that was dropped keeps its number
    assert create(Wanted("other", "toy/toyup", "1.0"), packs, TODAY)[0].parent.name == "11_other"
    (packs / "numbers.yaml").write_text("- 7\n")
    with pytest.raises(PatchlaneError, match="numbers"):
        create(Wanted("third", "toy/toyup", "1.0"), packs, TODAY)


def test_the_committed_list_has_every_number_of_history():
    listed = known_of.numbers(ROOT / "packs")
    written = [line for line in (ROOT / "packs/numbers.yaml").read_text().splitlines() if line[:1].isdigit()]
    assert [f"{number}: {slug}" for number, slug in sorted(listed.items())] == written
    asked = ["git", "log", "--all", "--format=", "--name-only", "--diff-filter=A", "--", "packs"]
    names = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.split()
    had = {int(match[1]) for name in names if (match := re.match(r"packs/(\d+)_", name))}
    assert had <= set(listed) and 40 in listed


def test_the_header_asks_for_the_python_of_the_release(packs, index_url):
    page = packs.parent / "index/simple/toyup/index.html"
    page.write_text(page.read_text().replace("<a href", '<a data-requires-python="&gt;=3.12" href'))
    create(NEW, packs, TODAY)
    create(Wanted("other", "toy/toyup", "1.0"), packs, TODAY)  # as releases.yaml has it
    for folder in ("01_toy_total", "02_other"):
        assert '# requires-python = ">=3.12"\n' in load_pack(packs / folder).reproducer.read_text()


def test_the_release_s_commit_is_that_of_its_tag(packs, index_url, monkeypatch):
    clone = packs.parent / "hosted/toy/toyup"
    clone.mkdir(parents=True)
    git("init", "-q", cwd=clone)
    git("commit", "-q", "--allow-empty", "-m", "one", cwd=clone)
    git("tag", "-a", "v1.0", "-m", "of its own object", cwd=clone)
    create(NEW, packs, TODAY)
    sha = git("rev-parse", "HEAD", cwd=clone).strip()
    pack = load_pack(packs / "01_toy_total")
    assert pack.pins["live"].sha == sha
    assert known_of.tagged("toy/toyup", "9.9") is None


def test_a_distribution_is_known_by_a_need(toy):
    names = ("toy-engine", "apache-toy-ffi")
    needs = "".join(f"{name}: [{{distribution: {name}, release: '1.0'}}]\n" for name in names)
    listed = "".join(f"{name}: {{'1.0': {{artifacts: {{a.whl: {'a' * 64}}}}}}}\n" for name in names)
    toy.publishes(PUBLISHED + listed, needs)
    assert known_of.distribution("NVIDIA/ToyEngine", toy.packs, []) == "toy-engine"
    assert known_of.distribution("apache/toy-ffi", toy.packs, []) == "apache-toy-ffi"
    assert known_of.distribution("x/unheard-of", toy.packs, [toy.pack()]) == "unheard-of"
    assert known_of.distribution("NVIDIA/TransformerEngine", ROOT / "packs", []) == "transformer-engine"


def test_a_guard_has_both_releases_and_no_fix(packs, index_url):
    wheel(packs.parent / "index", release="1.1")
    rows = '<a href="/toyup-1.1-py3-none-any.whl#sha256=' + "c" * 64 + '">toyup-1.1-py3-none-any.whl</a></body>'
    page = packs.parent / "index/simple/toyup/index.html"
    page.write_text(page.read_text().replace("</body>", rows))
    create(Wanted("toy_total", "toy/toyup", "1.0", kind="guard", fixed="1.1"), packs, TODAY)
    pack = load_pack(packs / "01_toy_total")
    assert pack.kind == "guard" and not pack.patch.exists()
    assert {name: pin.release for name, pin in pack.pins.items()} == {"live": "1.0", "fixed": "1.1"}


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
    monkeypatch.setattr(index, "python_of", lambda *asked: None)
    monkeypatch.setattr(known_of, "HOST", "/nowhere")
    create(NEW, packs, TODAY)
    pinned = load_pack(packs / "01_toy_total").pins["live"].artifacts
    assert list(pinned) == ([filename] if usable else [name for name in known if not name.endswith(".whl")])
