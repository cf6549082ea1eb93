"""Trees from git are what their SHA says, whatever the clone or the caller's git is set to."""

import contextlib
import json
import os
import socket
import subprocess
import zlib
from pathlib import Path

import pytest
from toy import SOURCE, git, overwrite, write_tree

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers.studies.versions import commits
from reproducers.upstream import git as gittree
from reproducers.upstream.store import Store, tree_digest


@pytest.fixture
def clone(tmp_path):
    """A repository with a commit that has what archives and settings of git would change."""
    attributes = "secret.txt export-ignore\nversion.txt export-subst\n*.txt text=auto\n"
    files = {**SOURCE, ".gitattributes": attributes, "secret.txt": "kept\n", "version.txt": "$Format:%H$\n"}
    repo = write_tree(tmp_path / "clone", files)
    (repo / "toyup/tool.sh").write_text("#!/bin/sh\n")
    (repo / "toyup/tool.sh").chmod(0o755)
    (repo / "toyup/link").symlink_to("core.py")
    git("init", "-q", cwd=repo)
    git("add", "-A", cwd=repo)
    git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module", cwd=repo)
    git("commit", "-qm", "one", cwd=repo)
    return repo


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", offline=True)


def head(repo):
    return git("rev-parse", "HEAD", cwd=repo).strip()


def test_a_tree_has_every_file_as_it_was_committed(clone, store):
    tree = gittree.commit_tree(store, str(clone), head(clone), "toy")
    assert (tree.path / "secret.txt").read_text() == "kept\n"
    assert (tree.path / "version.txt").read_text() == "$Format:%H$\n"
    assert os.access(tree.path / "toyup/tool.sh", os.X_OK) and (tree.path / "toyup/link").is_symlink()
    assert list((tree.path / "module").iterdir()) == []
    assert tree == gittree.commit_tree(store, "https://nowhere.invalid/x", head(clone), "toy")


def crlf(repo, monkeypatch, folder):
    (folder / ".gitconfig").write_text("[core]\n\tautocrlf = true\n\teol = crlf\n")
    monkeypatch.setenv("HOME", str(folder))


def attributes(repo, monkeypatch, folder):
    write_tree(repo / ".git/info", {"attributes": "* export-ignore\n"})


def replaced(repo, monkeypatch, folder):
    sha = head(repo)
    write_tree(repo, {"toyup/core.py": "raise SystemExit\n"})
    git("commit", "-qam", "other", cwd=repo)
    other = head(repo)
    git("reset", "-q", "--hard", sha, cwd=repo)
    git("replace", sha, other, cwd=repo)


def environment(repo, monkeypatch, folder):
    monkeypatch.setenv("GIT_DIR", str(folder / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.autocrlf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")


@pytest.mark.parametrize("poison", [crlf, attributes, replaced, environment])
def test_no_setting_changes_a_tree(clone, store, tmp_path, monkeypatch, poison):
    sha = head(clone)
    wanted = gittree.commit_tree(Store(tmp_path / "other", offline=True), str(clone), sha, "toy").digest
    poison(clone, monkeypatch, tmp_path)
    assert gittree.commit_tree(store, str(clone), sha, "toy").digest == wanted


def test_a_damaged_object_is_refused(clone, store):
    blob = git("rev-parse", "HEAD:toyup/core.py", cwd=clone).strip()
    path = clone / ".git/objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 3\0bad"))
    with pytest.raises(PatchlaneError, match="fsck"):
        gittree.commit_tree(store, str(clone), head(clone), "toy")
    assert not list((store.root / "trees").iterdir())


def test_a_tree_changed_together_with_its_record_is_made_anew(clone, store):
    sha = head(clone)
    tree = gittree.commit_tree(store, str(clone), sha, "toy")
    overwrite(tree.path / "toyup/core.py", "changed\n")
    record = tree.path.with_name(f"{sha}.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "digest": tree_digest(tree.path)}))
    assert gittree.commit_tree(store, str(clone), sha, "toy") == tree
    assert tree_digest(tree.path) == tree.digest


@pytest.mark.parametrize("source", ["--upload-pack=touch RAN", "-x"])
def test_a_source_that_is_an_option_is_refused(store, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    store.offline = False
    with pytest.raises(PatchlaneError) as caught:
        gittree.commit_tree(store, source, "0" * 40, "toy")
    assert caught.value.exit_code is Exit.USAGE, "not given to git, which would have failed to fetch"
    assert not list(tmp_path.rglob("RAN"))


@pytest.mark.parametrize("name", ["..", ".git", "x\x1b[2J"])
def test_a_commit_whose_files_lead_out_is_refused(clone, store, name):
    """git itself makes no such commit; ``mktree`` does."""
    blob = git("rev-parse", "HEAD:toyup/core.py", cwd=clone).strip()
    inner = made(clone, f"100644 blob {blob}\tevil\0")
    tree = made(clone, f"040000 tree {inner}\t{name}\0")
    sha = git("commit-tree", tree, "-m", "evil", cwd=clone).strip()
    with pytest.raises(PatchlaneError):
        gittree.commit_tree(store, str(clone), sha, "toy")
    assert not list(store.root.rglob("evil"))


def made(clone, rows):
    done = subprocess.run(["git", "mktree", "-z"], cwd=clone, input=rows, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("place", ["a folder", "the source", "--upstream"])
def test_a_pipe_does_not_hang(store, tmp_path, place):
    folder = write_tree(tmp_path / "up", SOURCE)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PatchlaneError):
        if place == "the source":
            gittree.commit_tree(store, str(pipe), "0" * 40, "toy")
        else:
            aim = folder if place == "a folder" else pipe
            gittree.checkout_tree(store, aim, sha=None, allow_dirty=False)


def test_a_fetch_keeps_the_callers_settings(clone, tmp_path, monkeypatch):
    (tmp_path / ".gitconfig").write_text(f'[url "{clone}"]\n\tinsteadOf = https://toy.invalid/repo\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=clone)
    fetched = gittree.commit_tree(Store(tmp_path / "s", offline=False), "https://toy.invalid/repo", head(clone), "toy")
    assert (fetched.path / "toyup/core.py").read_text() == SOURCE["toyup/core.py"]


def test_without_git(store, clone, monkeypatch):
    sha = head(clone)
    monkeypatch.setenv("PATH", str(Path(os.devnull).parent))
    with pytest.raises(CannotTestHere) as caught:
        gittree.commit_tree(store, str(clone), sha, "toy")
    assert caught.value.remedy == "install git"


@pytest.mark.parametrize("scheme", ["git", "http", "fd", "ext"])
def test_a_silent_server_is_given_up(tmp_path, monkeypatch, scheme):
    """``fd::`` and ``ext::`` are helpers by which git would wait for ever, or run a program."""
    monkeypatch.setattr(clock, "ANSWER_S", 1)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = {"fd": "fd::7", "ext": f"ext::touch {tmp_path / 'RAN'}"}.get(scheme, f"{scheme}://127.0.0.1:{port}/x")
        with pytest.raises(CannotTestHere) as caught:
            gittree.commit_tree(Store(tmp_path / "store"), source, "0" * 40, "toy")
    assert "0" * 12 in caught.value.what and "git clone" in caught.value.remedy
    assert not (tmp_path / "RAN").exists()


PROGRAMS = {
    "filter": {"filter.evil.clean": "{}", "filter.evil.required": "true"},
    "process": {"filter.evil.process": "{}"},
    "a name with dots": {"filter.evil=x.y.clean": "{}"},
    "fsmonitor": {"core.fsmonitor": "{}"},
    "hooks": {"core.hooksPath": "hooks"},
    "textconv": {"diff.evil.textconv": "{}"},
    "a driver": {"merge.evil.driver": "{}", "diff.evil.command": "{}", "diff.external": "{}"},
    "signatures": {"log.showSignature": "true", "gpg.program": "{}"},
    "lazy": {
        "extensions.partialClone": "origin",
        **{"remote.origin.promisor": "true", "remote.origin.url": "../clone", "remote.origin.uploadpack": "{}"},
    },
    "ssh": {
        "extensions.partialClone": "origin",
        **{"remote.origin.promisor": "true", "remote.origin.url": "ssh://nowhere.invalid/x", "core.sshCommand": "{}"},
    },
}


@pytest.mark.parametrize("settings", PROGRAMS.values(), ids=PROGRAMS)
def test_a_clone_runs_no_program(clone, store, tmp_path, settings):
    program, ran = tmp_path / "program", tmp_path / "RAN"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    names = ("evil", "evil=x.y")
    rows = "".join(f"* filter={name}\n" for name in names if f"filter.{name}.clean" in settings or name == "evil")
    write_tree(clone, {".gitattributes": rows + "* diff=evil merge=evil\n", "hooks/post-index-change": "", "s/x": ""})
    (clone / "hooks/post-index-change").write_text(program.read_text())
    (clone / "hooks/post-index-change").chmod(0o755)
    git("init", "-q", cwd=clone / "s")
    git("add", ".gitattributes", "hooks", cwd=clone)
    git("commit", "-qm", "two", cwd=clone)
    sha = head(clone)
    for name, value in settings.items():
        git("config", name, value.format(program), cwd=clone)
        git("config", name, value.format(program), cwd=clone / "s")
    if "extensions.partialClone" in settings:
        blob = git("rev-parse", "HEAD:toyup/core.py", cwd=clone).strip()
        (clone / ".git/objects" / blob[:2] / blob[2:]).unlink()
    os.utime(clone / "toyup/core.py", (1, 1))  # git has to look into it
    ran.unlink(missing_ok=True)
    with contextlib.suppress(PatchlaneError):
        gittree.checkout_tree(store, clone, sha=None, allow_dirty=False)
    with contextlib.suppress(PatchlaneError):
        gittree.commit_tree(store, str(clone), sha, "toy")
    commits.title(clone, sha)
    assert not ran.exists()


@pytest.mark.parametrize("aim", ["/etc", "../beside", "loop", "absent", "ABSOLUTE/toyup/core.py", "toyup/../../beside"])
@pytest.mark.parametrize("name", ["link", "toyup/link"])
def test_a_folders_link_out_is_not_copied(store, tmp_path, name, aim):
    folder = write_tree(tmp_path / "up", SOURCE)
    write_tree(tmp_path / "beside", {"large": "x"})
    (folder / "loop").symlink_to("loop")
    if aim != "loop":
        (folder / "loop").unlink()
    (folder / name).symlink_to(aim.replace("ABSOLUTE", str(folder)))
    with pytest.raises(PatchlaneError, match="link") as caught:
        gittree.checkout_tree(store, folder, sha=None, allow_dirty=False)
    assert "PATCHLANE_STORE" not in caught.value.remedy
    assert not list(store.root.rglob("large"))


def test_a_folders_links_inside_stay_links(store, tmp_path):
    folder = write_tree(tmp_path / "up", SOURCE)
    (folder / "toyup/link.py").symlink_to("core.py")
    (folder / "again").symlink_to("toyup")
    tree = gittree.checkout_tree(store, folder, sha=None, allow_dirty=False)
    assert tree.digest == tree_digest(folder) == tree_digest(tree.path)
    assert (tree.path / "again").is_symlink() and (tree.path / "again/link.py").read_text() == SOURCE["toyup/core.py"]
