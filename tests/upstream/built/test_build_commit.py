"""A commit's tree after a command of the user's: what it may add, and what is refused."""

import shlex
import sys

import pytest
from toy import SOURCE, git, named, overwrite, write_tree

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers.upstream import git as gittree
from reproducers.upstream.built import build_commit
from reproducers.upstream.store import Store, Tree, tree_digest

ADDS = 'mkdir -p build && echo "$PATCHLANE_COMMIT" > build/lib.so && echo made'


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", offline=True)


@pytest.fixture
def tree(store, tmp_path):
    """The tree of a commit with a link, a tool and an empty folder of a submodule."""
    repo = write_tree(tmp_path / "clone", {**SOURCE, "tool.sh": "#!/bin/sh\n"})
    (repo / "tool.sh").chmod(0o755)
    (repo / "link").symlink_to("tool.sh")
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module", cwd=repo)
    git("commit", "-qm", "one", cwd=repo)
    return gittree.commit_tree(store, str(repo), git("rev-parse", "HEAD", cwd=repo).strip(), "toyup")


def test_a_build_adds_files_to_a_copy_and_says_so(store, tree):
    before = tree_digest(tree.path)
    built = build_commit.ensure(store, tree, ADDS)
    assert (built.path / "build/lib.so").read_text() == f"{tree.origin.sha}\n"
    assert not (tree.path / "build").exists() and tree_digest(tree.path) == before
    assert (built.path / "link").is_symlink() and (built.path / "module").is_dir()
    assert built.digest == tree_digest(built.path) != before
    assert (built.origin.built.command, built.origin.built.source) == (ADDS, tree.digest)
    assert str(built.origin) == f"toyup git {tree.origin.sha} (built)" and built.origin.unbuilt == tree.origin
    (log,) = (store.root / "built").glob("*.log")
    assert log.read_text() == "made\n"


def test_a_build_is_kept_by_tree_command_and_the_files_that_it_names(store, tree, tmp_path):
    script = tmp_path / "a build.sh"
    script.write_text(f"echo run >> {shlex.quote(str(tmp_path / 'runs'))}; touch library")
    command = f"sh {shlex.quote(str(script))}"
    built = build_commit.ensure(store, tree, command)
    assert build_commit.ensure(store, tree, command) == built
    assert [file.name for file in built.origin.built.files] == [str(script)] and hash(built)
    script.write_text(script.read_text() + "; touch more")
    assert (build_commit.ensure(store, tree, command).path / "more").exists()
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    overwrite(built.path / "library", "changed in the store")
    script.write_text(script.read_text().removesuffix("; touch more"))
    assert build_commit.ensure(store, tree, command).digest == built.digest  # made anew


def test_a_build_that_fails_cannot_be_tested_and_is_not_kept(store, tree):
    with pytest.raises(CannotTestHere) as refused:
        build_commit.ensure(store, tree, "echo compiling; echo no such compiler >&2; echo; exit 3")
    log = next((store.root / "built").glob("*.log"))
    assert f"ended with 3 at {tree.origin.sha[:12]}: no such compiler (log: {log})" in refused.value.what
    assert str(log) in refused.value.remedy and log.read_text() == "compiling\nno such compiler\n\n"
    assert [path for path in (store.root / "built").iterdir() if path.is_dir()] == []
    with pytest.raises(CannotTestHere, match="it printed nothing"):
        build_commit.ensure(store, tree, "exit 1")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("echo more >> toyup/core.py", "toyup/core.py"),
        ("rm toyup/core.py", "toyup/core.py"),
        ("chmod -x tool.sh", "tool.sh"),
        ("chmod +x toyup/core.py", "toyup/core.py"),
        ("ln -sf toyup/core.py link", "link"),
        ("rm link && cp tool.sh link", "link"),
        ("mv toyup/core.py elsewhere.py && ln -s ../elsewhere.py toyup/core.py", "toyup/core.py"),
    ],
)
def test_a_build_that_changes_the_commits_own_files_is_refused(store, tree, command, named):
    with pytest.raises(PatchlaneError) as refused:
        build_commit.ensure(store, tree, command)
    assert refused.value.exit_code is Exit.USAGE and refused.value.remedy
    assert f"changed {named}, which is the commit's own" in refused.value.what


def test_what_no_digest_covers_is_no_part_of_a_build(store, tree, tmp_path):
    write_tree(tmp_path / "outside", {"lib.so": ""})
    with pytest.raises(PatchlaneError, match=r"linked lib\.so to a file outside"):
        build_commit.ensure(store, tree, f"ln -s {tmp_path}/outside/lib.so lib.so")
    assert build_commit.ensure(store, tree, "touch made && ln -s made lib.so").path.joinpath("lib.so").is_symlink()
    command = f"{sys.executable} -m compileall -q toyup && mkdir -p .git new/__pycache__ && touch new/__pycache__/x.pyc"
    built = build_commit.ensure(store, tree, command)
    assert [*built.path.rglob("__pycache__")] == [] and not (built.path / ".git").exists()


def test_only_clean_commits_are_built(store, tree):
    dirty = tree.origin.model_copy(update={"dirty": True})
    for origin in (named("needs toy"), dirty, tree.origin.on(7)):
        with pytest.raises(PatchlaneError, match="builds clean commits"):
            build_commit.ensure(store, Tree(tree.path, tree.digest, origin), ADDS)
    with pytest.raises(PatchlaneError, match="No closing quotation"):
        build_commit.ensure(store, tree, "echo 'open")
