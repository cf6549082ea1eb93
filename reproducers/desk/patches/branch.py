"""Try a patch on its tree as a maintainer would: by ``git am`` in a repository."""

from __future__ import annotations

from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import temporary
from reproducers.desk.patches.trees import touched
from reproducers.desk.patches.tried import git
from reproducers.record.schema import Pack
from reproducers.upstream import git as gittree
from reproducers.upstream import patching

HEADS = ("refs/remotes/origin/main", "refs/heads/main", "refs/remotes/origin/master", "refs/heads/master")


def head(clone: Path) -> str:
    """The commit of a clone's main branch, of the remote's if it has a remote; PatchlaneError if there is none."""
    for ref in HEADS:
        done = gittree.git("-C", str(clone), "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if done.returncode == 0:
            return done.stdout.strip()
    raise PatchlaneError(
        f"--clone {clone}: no git clone with a main branch", "git clone the upstream, then --clone DIR"
    )


def on_tree(pack: Pack, tree: Path, mail: bytes) -> str:
    """git's reason to refuse the mail on an unpacked tree; empty if it applies."""
    strip = patching.strip_for(tree, pack.upstream.source_root)
    files = {name: (tree / name).read_bytes() for name in _names(mail, strip) if (tree / name).is_file()}
    return _tried(files, mail, strip)


def on_commit(clone: Path, commit: str, mail: bytes) -> str:
    """git's reason to refuse the mail on a commit of a clone; empty if it applies."""
    shown = {name: gittree.git_bytes("-C", str(clone), "show", f"{commit}:{name}") for name in _names(mail, 1)}
    return _tried({name: done.stdout for name, done in shown.items() if done.returncode == 0}, mail, 1)


def _names(mail: bytes, strip: int) -> list[str]:
    with temporary() as place:
        path = Path(place) / "one.patch"
        path.write_bytes(mail)
        return touched(patching.files(path), strip)


def _tried(files: dict[str, bytes], mail: bytes, strip: int) -> str:
    """git's reason to refuse the mail on these files; git applies whole contexts only, so without fuzz."""
    with temporary() as place:
        repository, path = Path(place) / "repository", Path(place) / "one.patch"
        repository.mkdir()
        path.write_bytes(mail)
        for name, data in files.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_bytes(data)
        for command in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "--allow-empty", "-m", "tree"]):
            git(repository, *command)
        done = git(repository, "am", "--quiet", "--keep-cr", f"-p{strip}", str(path))
    return " ".join((done.stderr or done.stdout).split())[:200] if done.returncode else ""
