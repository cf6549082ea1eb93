"""What a person reads and posts, as files and one digest."""

import re
import resource

import pytest
from toy import SOURCE, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.desk.patches import branch
from reproducers.desk.patches.trees import tree_of
from reproducers.desk.text import dossier, render
from reproducers.evidence.receipts import newest, write
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream.store import Store

BODY = """{% extends form %}
{% block problem %}Off by {{ measured("cpu", "pristine", "total") }}.{% endblock %}
{% block cause %}A skip.{% endblock %}
{% block evidence %}{{ host("cpu") }}.{% endblock %}
{% block fix %}No skip.{% endblock %}
"""
ATTACHED = 25_000_000  # bytes that GitHub takes as one attachment


@pytest.fixture
def contents(toy):
    pack = toy.pack()
    source = '# /// script\n# dependencies = []\n# ///\n"""The toy."""\n' + pack.reproducer.read_text()
    write_tree(pack.folder, {"body.md.j2": BODY, "reproducer.py": source})
    write(toy.run(pack), toy.root / "receipts", "toy", [], {})
    return dossier.files(pack, toy.root / "receipts", "issue")


def test_all_that_is_posted_is_there(contents):
    assert set(contents) == {"issue.md", "title.txt", "pack07.py", "pack07.log", "pack07.patch"}
    assert b"[pristine] BUG_REPRODUCED" in contents["pack07.log"] and b'] {"checks"' not in contents["pack07.log"]


def test_any_change_is_another_digest(contents):
    changed = [contents | {name: content + b" "} for name, content in contents.items()]
    renamed = {f"{name}.txt": content for name, content in contents.items()}
    digests = {dossier.digest(files) for files in (contents, *changed, renamed, dict(list(contents.items())[1:]))}
    assert len(digests) == len(contents) + 3
    assert dossier.digest(dict(reversed(contents.items()))) == dossier.digest(contents)


def test_it_is_written_alone(contents, tmp_path):
    folder = dossier.write(tmp_path / "pack07", contents)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    as_comment = {("comment.md" if name == "issue.md" else name): content for name, content in contents.items()}
    dossier.write(folder, as_comment)
    assert {path.name for path in folder.iterdir()} == set(as_comment)
    (folder / "mine.txt").write_text("x")
    with pytest.raises(PatchlaneError, match=r"mine\.txt"):
        dossier.write(folder, contents)


@pytest.mark.parametrize("held", [{}, {"pr.md": b"before", "title.txt": b"before"}], ids=["new", "there"])
def test_a_full_disk_leaves_what_was_there(contents, tmp_path, held):
    folder = tmp_path / "pack07"
    if held:
        dossier.write(folder, held)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(contents["title.txt"]) + 1, most[1]))
    try:
        with pytest.raises(PatchlaneError) as refused:
            dossier.write(folder, {"title.txt": contents["title.txt"]} | contents)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert str(folder) in refused.value.what and refused.value.remedy.startswith("--out ")
    assert folder.exists() == bool(held)
    assert {path.name: path.read_bytes() for path in folder.glob("*")} == held


@pytest.mark.parametrize("pack", load_packs(), ids=lambda pack: pack.id)
def test_github_takes_every_file(pack):
    if not any(newest(pack, lane, ROOT / "receipts", pack.filing_pin) for lane in pack.lanes):
        pytest.skip(f"no receipt yet at pin {pack.filing_pin}")
    for form in dossier.forms(pack):
        assert all(len(content) < ATTACHED for content in dossier.files(pack, ROOT / "receipts", form).values())


@pytest.mark.parametrize("pack", [pack for pack in load_packs() if pack.patch.is_file()], ids=lambda pack: pack.id)
def test_the_commit_goes_onto_the_tree_that_is_filed(pack):
    tree = tree_of(pack, pack.pins[pack.filing_pin], Store(offline=True).root)
    if tree is None:
        pytest.skip(f"{pack.pins[pack.filing_pin].origin} is not in the store")
    assert branch.on_tree(pack, tree, dossier.commit(render.patch(pack), pack)) == ""


def test_the_commit_has_an_author_to_fill_in_and_no_bookkeeping(toy, contents):
    mail = contents["pack07.patch"].decode()
    assert mail.splitlines()[1:3] == ["From: FULL NAME <EMAIL>", "Subject: sum all values"]
    assert not re.search(r"(?m)^(?:Pack|Upstream-Status|Remove-When|Review-By|Reproducer|Validated|Date):|sha256", mail)
    git("init", "-q", cwd=write_tree(toy.root / "clone", SOURCE))
    for command in (["add", "-A"], ["commit", "-qm", "main"]):
        git(*command, cwd=toy.root / "clone")
    (toy.root / "x.patch").write_text(mail)
    git("am", "-q", str(toy.root / "x.patch"), cwd=toy.root / "clone")
    git("commit", "-q", "--amend", "--reset-author", "--no-edit", "-s", cwd=toy.root / "clone")
    logged = git("log", "-1", "--format=%an%n%s%n%b", cwd=toy.root / "clone").split("\n")
    assert logged[:2] == ["toy", "sum all values"] and logged[2] == toy.pack().claim
    assert "Signed-off-by: toy <toy@example.org>" in logged
