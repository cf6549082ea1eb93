"""Upstream's files at a commit: from a clone that may lack some, and from none that is another."""

import pytest
from toy import git, write_tree

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.studies.suites import suite

FILES = {"tests/test_a.py": "a\n", "tests/data.bin": "data\n", "toyup.py": "x\n", "toyup/b.py": "", ".ci/x.py": ""}


@pytest.fixture
def clone(toy):
    """(a repository, its one commit)."""
    repo = write_tree(toy.root / "clone", FILES)
    (repo / "link.py").symlink_to("toyup.py")
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "one", cwd=repo)
    return repo, git("rev-parse", "HEAD", cwd=repo).strip()


def lose(repo, name):
    """Remove the object of a file, as a partial clone lacks it."""
    sha = git("rev-parse", f"HEAD:{name}", cwd=repo).strip()
    path = repo / ".git" / "objects" / sha[:2] / sha[2:]
    path.unlink()
    return path


def names(tree):
    return {path.relative_to(tree.path).as_posix() for path in tree.path.rglob("*") if path.is_file()}


def test_all_but_links_and_hidden_folders(toy, clone):
    repo, sha = clone
    tree = suite.tests_tree(toy.store, toy.pack(), sha, repo)
    assert names(tree) == {"tests/test_a.py", "tests/data.bin", "toyup.py", "toyup/b.py"}
    assert str(tree.origin) == f"toyup repository at git {sha}"
    assert suite.tests_tree(toy.store, toy.pack(), sha) == tree  # the store's, with no clone


def test_a_clone_may_lack_a_file(toy, clone):
    repo, sha = clone
    lose(repo, "tests/data.bin")
    assert "tests/data.bin" not in names(suite.tests_tree(toy.store, toy.pack(), sha, repo))


def test_no_file_may_be_another(toy, clone):
    repo, sha = clone
    blob = lose(repo, "tests/test_a.py")
    other = git("hash-object", "-w", "toyup.py", cwd=repo).strip()
    blob.write_bytes((repo / ".git" / "objects" / other[:2] / other[2:]).read_bytes())
    with pytest.raises(PatchlaneError):
        suite.tests_tree(toy.store, toy.pack(), sha, repo)


def test_a_listing_that_is_not_the_commits(toy, clone, monkeypatch):
    repo, sha = clone
    real = suite.git_bytes

    def other(*args, **more):
        done = real(*args, **more)
        if args[0] == "ls-tree":
            done.stdout = done.stdout.replace(b"tests/test_a.py", b"tests/test_b.py")
        return done

    monkeypatch.setattr(suite, "git_bytes", other)
    with pytest.raises(PatchlaneError, match="is not the commit's"):
        suite.tests_tree(toy.store, toy.pack(), sha, repo)


def test_a_commit_that_the_clone_lacks(toy, clone):
    with pytest.raises(CannotTestHere, match="git -C"):
        suite.tests_tree(toy.store, toy.pack(), "c" * 40, clone[0])
    with pytest.raises(PatchlaneError, match="not a folder"):
        suite.tests_tree(toy.store, toy.pack(), "c" * 40, toy.root / "nowhere")
    with pytest.raises(CannotTestHere, match="run again with --upstream CLONE"):
        suite.tests_tree(toy.store, toy.pack(), "c" * 40)


def test_a_bundle_has_them_by_the_key_that_a_host_asks_for(toy, clone):
    repo, sha = clone
    pack = toy.pack()
    live = pack.pins["live"].model_copy(update={"sha": sha})
    pack = pack.model_copy(update={"pins": {"live": live, "bare": live.model_copy(update={"sha": None})}})
    tree = suite.tests_tree(toy.store, pack, sha, repo)
    assert suite.bundled(toy.store, [pack], ["live", "bare", "fixed"], []) == {f"tests-{sha}": tree}
