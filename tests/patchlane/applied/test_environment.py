"""Patches put into an installation of the toy and taken out again."""

import csv

import pytest
from toy import FIRST, SOURCE, TOTAL, edited, write_tree
from toy_environment import BUGGY, PATCHED, installed, known_of, tree

from patchlane.applied import environment as applied
from patchlane.applied.recorded import _row
from patchlane.applied.transaction import locked
from patchlane.base.errors import PatchlaneError
from patchlane.judged.judgement import audit
from patchlane.patches.state import FOLDER
from patchlane.present.environment import of_python

INFO = "toyup-1.0.dist-info/RECORD"


@pytest.fixture
def site(tmp_path):
    """The toy as pip installs it, compiled too."""
    folder = installed(tmp_path / "site")
    rows = [_row(name, (folder / name).read_bytes()) for name in SOURCE]
    return write_tree(
        folder, {INFO: "\n".join([*rows, f"{INFO},,", ""]), "toyup/__pycache__/core.cpython-311.pyc": "old"}
    )


def content(site):
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def apply(site, known, dry_run=False):
    seen = of_python(site, known)
    with locked(site):
        return applied.apply(audit(known, seen), known, seen, dry_run)


def states(site, known):
    return [answer.state for answer in audit(known, of_python(site, known))]


def test_there_and_back(site, toy):
    known, before = known_of(toy.pack()), content(site)
    assert apply(site, known, dry_run=True).packs == ["pack07"] and content(site) == before
    done = apply(site, known)
    assert (done.root, done.packs, done.left) == (site, ["pack07"], {}) and states(site, known) == ["patched"]
    assert (site / "toyup/core.py").read_text() == PATCHED["toyup/core.py"]
    assert not (site / "toyup/__pycache__/core.cpython-311.pyc").exists()
    rows = {row[0]: row for row in csv.reader((site / INFO).open())}
    assert ",".join(rows["toyup/core.py"]) == _row("toyup/core.py", (site / "toyup/core.py").read_bytes())
    assert apply(site, known).packs == []
    write_tree(site, {"toyup/__pycache__/core.cpython-311.pyc": "new"})
    with locked(site):
        assert applied.revert(site) == ("pack07",)
    assert content(site) == before and not (site / FOLDER).exists()


def test_patches_of_one_function_are_known_by_what_was_put_in(site, toy):
    """The code with both is that of no measured tree."""
    first, second = toy.patch(edited(TOTAL)), toy.patch(edited(TOTAL, FIRST), edited(TOTAL))
    record = toy.pack(first)
    other = toy.pack(
        second, record=(record.folder / "pack.yaml").read_text().replace("number: 7", "number: 8"), folder="08_toy"
    )
    known = known_of(record, other, trees=(BUGGY, tree("1.0", "patched", edited(TOTAL), patch="fix.patch")))
    assert apply(site, known).packs == ["pack07", "pack08"]
    assert states(site, known) == ["patched", "patched"]
    (site / "toyup/core.py").write_text((site / "toyup/core.py").read_text() + "\n\ndef total(x):\n    return 1\n")
    assert states(site, known) == ["unknown", "unknown"]


def test_what_does_not_fit_is_left_and_said(site, toy):
    drifted = SOURCE["toyup/core.py"].replace("    result = 0.0\n", "    result = (0.0)\n")
    (site / "toyup/core.py").write_text(drifted)
    before = content(site)
    done = apply(site, known_of(toy.pack()))
    assert done.packs == [] and done.left["pack07"].startswith("rebase ") and content(site) == before


def test_what_pip_did_not_install_is_left(site, toy):
    (site / INFO).unlink()
    before = content(site)
    done = apply(site, known_of(toy.pack()))
    assert done.packs == [] and "patch -F0" in done.left["pack07"] and content(site) == before


def test_a_link_is_not_replaced(site, toy):
    (site / "toyup/core.py").rename(site / "elsewhere.py")
    (site / "toyup/core.py").symlink_to("../elsewhere.py")
    before = content(site)
    with pytest.raises(PatchlaneError):
        apply(site, known_of(toy.pack()))
    assert content(site) == before
