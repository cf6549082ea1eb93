"""Trees from git: a full SHA from any clone or URL, or the state of an existing checkout.

This module reads objects raw and compares the tree with the requested SHA. So neither a clone's attributes, line-end
or replacement settings nor a damaged object change what is tested.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import within
from reproducers.record.origin import Origin, readable
from reproducers.upstream.store import SKIPPED, Store, Tree, tree_digest

_ENV = {
    **{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0"},
    **{"GIT_HTTP_LOW_SPEED_LIMIT": "1", "GIT_HTTP_LOW_SPEED_TIME": f"{clock.ANSWER_S:g}"},
}
FETCHED = "https:http:ssh:git:file"  # transports of a pin's source: no helper that a name such as ext:: or fd:: starts
LACKED = "https:http"  # transports by which a clone that lacks contents may get them: they start no program
_QUIET = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
_SETTINGS = {  # of a clone that name programs; ``_programs`` finds those with a name of the clone's own
    "safe.directory": "*",
    **{"core.fsmonitor": "false", "core.hooksPath": os.devnull, "core.attributesFile": os.devnull},
    **{"core.alternateRefsCommand": "true", "core.pager": "cat", "core.editor": "false"},
    **{"log.showSignature": "false", "commit.gpgSign": "false", "submodule.recurse": "false"},
}
_OWN_HELPERS = {"core.sshCommand": "ssh", "core.askPass": "", "credential.helper": ""}
_PROGRAMS = r"^(filter\..*\.(clean|smudge|process|required)|diff\..*\.(textconv|command)|merge\..*\.driver)$"
_OWN = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
_HELPERS = [word for name, value in _OWN_HELPERS.items() for word in ("-c", f"{name}={value}")]


def git(
    *args: str, cwd: Path | None = None, network: bool = False, above: Path | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run git. The caller's settings reach git only for a fetch (``network``), and no program of a clone's is run.

    git looks for no repository in the folder ``above`` or higher. Raises CannotTestHere if git is not installed, or
    does not end within ``within_s`` seconds.
    """
    done = git_bytes(*args, cwd=cwd, network=network, above=above, **more)
    out, err = (text.decode(errors="surrogateescape") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def git_bytes(
    *args: str,
    cwd: Path | None = None,
    network: bool = False,
    given: bytes = b"",
    above: Path | None = None,
    within_s: float = clock.STEP_S,
    extra: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git as ``git`` does; its output is bytes, ``given`` is its input, ``extra`` joins its environment."""
    inherited = {name: value for name, value in os.environ.items() if network or not name.startswith("GIT_")}
    environment = {**inherited, **_ENV, **({} if network else _QUIET), **(extra or {})}
    environment["GIT_ALLOW_PROTOCOL"] = FETCHED if network else LACKED
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"):
        environment.pop(name, None)
    if above is not None:
        environment["GIT_CEILING_DIRECTORIES"] = str(above)
    try:
        command = ["git", *_OWN, *([] if network else _HELPERS), *args]
        return clock.run(
            command, within_s, f"git {args[0]}", cwd=cwd, env=environment, input=given, capture_output=True
        )
    except FileNotFoundError as error:
        raise CannotTestHere("git is not installed", "install git") from error


def _programs(folder: Path) -> dict[str, str]:
    """The environment in which git runs no filter or driver that the clone's settings name."""
    found = git("config", "-z", "--name-only", "--get-regexp", _PROGRAMS, cwd=folder).stdout
    names = sorted({name for name in found.split("\0") if name})
    rows = {f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(names)}
    rows |= {f"GIT_CONFIG_VALUE_{n}": "false" if x.endswith(".required") else "" for n, x in enumerate(names)}
    return rows | {"GIT_CONFIG_COUNT": str(len(names))}


def merged(left: Path, base: Path, right: Path) -> bytes | None:
    """The merge of two versions of a file over their base by ``git merge-file``, None if their changes overlap."""
    done = git_bytes("merge-file", "-p", "-q", str(left), str(base), str(right))
    return done.stdout if done.returncode == 0 else None


def commit(clone: Path, name: str) -> str | None:
    """The SHA of a commit, tag or branch of a clone, None where it has none of that name or is no clone."""
    if not clone.is_dir() or name.startswith("-"):
        return None
    done = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", cwd=clone)
    return done.stdout.strip() if done.returncode == 0 else None


def tagged(clone: Path, release: str) -> str | None:
    """The SHA that a clone has tagged with the release, in one of the usual forms; None if it has none."""
    tags = (f"refs/tags/{form}{release}" for form in ("", "v", "core_v"))
    return next((sha for tag in tags if (sha := commit(clone, tag))), None)


def commit_tree(store: Store, source: str, sha: str, distribution: str | None = None) -> Tree:
    """The tree at commit ``sha`` of ``source``, a URL or the path of a clone (bare or not).

    Compares a tree that the store has with the text of the commit, which the tree's record keeps. Raises
    PatchlaneError if ``source`` is no repository or ``sha`` no full SHA, CannotTestHere if the commit is out of reach.
    """
    if source.startswith("-") or not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise PatchlaneError(f"{source} at {sha}: not a repository and a full SHA", "correct pins in pack.yaml")

    def fill(target: Path) -> dict[str, Any]:
        local = Path(source).expanduser()
        if local.exists() and not local.is_dir():
            raise PatchlaneError(f"{source}: not a repository", "correct pins in pack.yaml")
        if local.is_dir():
            return _export(local, sha, target)
        if store.offline:
            raise CannotTestHere(f"commit {sha[:12]} is not in the store and the run is offline", _clone(source, sha))
        return _fetch(source, sha, target)

    def proved(path: Path, record: dict[str, Any]) -> bool:
        return "commit" not in record or _is_commit(path, sha, record["commit"], record.get("modules", {}))

    origin = Origin(kind="commit", distribution=distribution, sha=sha)
    return store.tree("trees", sha, origin, fill, proved)


def _clone(url: str, sha: str) -> str:
    """The remedy for a commit that is out of reach."""
    return f"git clone {url} DIR where there is network, then run again with --at {sha} --upstream DIR"


def _fetch(url: str, sha: str, target: Path) -> dict[str, Any]:
    clone = target.parent / "clone.git"
    git("init", "--bare", "-q", str(clone))
    # a small question first: over some transports only its own end tells a silent server from one that packs
    for words, within_s in ((["ls-remote", "-q"], clock.ANSWER_S), (["fetch", "-q", "--depth", "1"], clock.FETCH_S)):
        what = ["HEAD"] if words[0] == "ls-remote" else [sha]
        try:
            done = git(*words, "--end-of-options", url, *what, cwd=clone, network=True, within_s=within_s)
        except CannotTestHere as error:
            raise CannotTestHere(f"commit {sha[:12]} cannot be fetched: {error.what}", _clone(url, sha)) from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise CannotTestHere(f"commit {sha[:12]} cannot be fetched: {reason}", _clone(url, sha))
    return _export(clone, sha, target)


def _export(clone: Path, sha: str, target: Path) -> dict[str, Any]:
    """Write the commit's files. Returns their proof: the commit's text and its submodules."""
    if git("cat-file", "-e", f"{sha}^{{commit}}", cwd=clone).returncode:
        raise CannotTestHere(f"{clone} has no commit {sha}", f"git -C {clone} fetch origin {sha}")
    commit = git_bytes("cat-file", "commit", sha, cwd=clone).stdout
    listed = git_bytes("ls-tree", "-r", "-z", "--full-tree", sha, cwd=clone).stdout
    entries = [_entry(row) for row in listed.split(b"\0") if row]
    blobs = _blobs(clone, sorted({entry[1] for entry in entries if entry[0] != "160000"}))
    modules = {}
    for mode, blob, name in entries:
        path = within(target, name)
        if ".git" in path.parts:
            raise PatchlaneError(f"{clone}: commit {sha} has an unsafe file {name!r}", f"git -C {clone} fsck")
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == "160000":
            path.mkdir()
            modules[name] = blob
        elif mode == "120000":
            path.symlink_to(os.fsdecode(blobs.get(blob, b"?")))
        else:
            path.write_bytes(blobs.get(blob, b""))
            path.chmod(0o755 if mode == "100755" else 0o644)
    text = commit.decode("latin-1")
    if not _is_commit(target, sha, text, modules):
        raise PatchlaneError(f"{clone}: commit {sha} has objects that do not match their SHA", f"git -C {clone} fsck")
    return {"commit": text, "modules": modules}


def _entry(row: bytes) -> tuple[str, str, str]:
    """(mode, SHA, path) of a line of ls-tree."""
    about, name = row.split(b"\t", 1)
    mode, _, sha = about.decode().split(" ")
    return mode, sha, os.fsdecode(name)


def _blobs(clone: Path, shas: list[str]) -> dict[str, bytes]:
    """{SHA: content} of the objects that git can read."""
    data = git_bytes("cat-file", "--batch", cwd=clone, given="\n".join([*shas, ""]).encode()).stdout
    contents, place = dict[str, bytes](), 0
    while place < len(data):
        end = data.index(b"\n", place)
        words = data[place:end].decode().split(" ")
        place = end + 1
        if len(words) == 3 and words[2].isdigit():
            contents[words[0]] = data[place : place + int(words[2])]
            place += int(words[2]) + 1
    return contents


def _is_commit(tree: Path, sha: str, commit: str, modules: dict[str, str]) -> bool:
    """Whether ``commit`` is the text whose SHA is ``sha``, and ``tree`` the tree that it names."""
    text = commit.encode("latin-1")
    return _object("commit", text) == sha and text.startswith(b"tree " + _tree_id(tree, modules).encode() + b"\n")


def _object(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _tree_id(folder: Path, modules: dict[str, str], above: str = "") -> str:
    """git's SHA of a folder. ``modules`` are {path: SHA} of its submodules, which are empty folders here."""
    rows = []
    for entry in os.scandir(folder):
        name, path = f"{above}{entry.name}", Path(entry.path)
        if entry.is_symlink():
            mode, sha = "120000", _object("blob", os.fsencode(path.readlink()))
        elif not entry.is_dir():
            mode = "100755" if entry.stat().st_mode & 0o100 else "100644"
            sha = _object("blob", path.read_bytes())
        elif name in modules and not any(path.iterdir()):
            mode, sha = "160000", modules[name]
        else:
            mode, sha = "40000", _tree_id(path, modules, f"{name}/")
        order = os.fsencode(entry.name) + (b"/" if mode == "40000" else b"")
        rows.append((order, f"{mode} ".encode() + os.fsencode(entry.name) + b"\0" + bytes.fromhex(sha)))
    return _object("tree", b"".join(row for _, row in sorted(rows)))


def checkout_tree(store: Store, folder: Path, *, sha: str | None, allow_dirty: bool) -> Tree:
    """The tree of an existing folder, or of commit ``sha`` of a checkout.

    Raises PatchlaneError if the checkout has local changes and ``allow_dirty`` is false or its HEAD is not ``sha``.
    """
    if not folder.is_dir():
        raise PatchlaneError(f"--upstream {folder}: not a folder", "pass a checkout or an unpacked package")
    if git("rev-parse", "--absolute-git-dir", cwd=folder).stdout.strip() == str(folder.resolve()):
        head = sha or git("rev-parse", "HEAD", cwd=folder).stdout.strip()
        return commit_tree(store, str(folder), head)
    top = git("rev-parse", "--show-toplevel", cwd=folder)
    if top.returncode or Path(top.stdout.strip()).resolve() != folder.resolve():
        return _copy(store, folder, Origin(kind="folder", name=readable(folder.name)))
    head = git("rev-parse", "HEAD", cwd=folder).stdout.strip()
    asked = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")  # whose settings would run
    dirty = bool(git(*asked, cwd=folder, extra=_programs(folder)).stdout.strip())
    if dirty and not allow_dirty:
        raise PatchlaneError(
            f"--upstream {folder}: the checkout has local changes",
            "git stash, or --allow-dirty to test and record it as it is",
        )
    if sha and sha != head and dirty:
        raise PatchlaneError(f"--upstream {folder}: dirty and at {head[:12]}, not {sha[:12]}", f"git checkout {sha}")
    if dirty:
        return _copy(store, folder, Origin(kind="commit", sha=head, dirty=True))
    return commit_tree(store, str(folder), sha or head)


def _copy(store: Store, folder: Path, origin: Origin) -> Tree:
    """A copy in the store, keyed by content: the tested tree cannot change under the test.

    Links stay links. Raises PatchlaneError for one that leads nowhere or out of the folder, whose aim no digest covers.
    """
    top = folder.resolve()
    for at, folders, names in os.walk(folder):
        links = [name for name in folders if Path(at, name).is_symlink()]
        folders[:] = [name for name in folders if name not in SKIPPED]
        for path in (Path(at, name) for name in (*names, *links) if name not in SKIPPED):
            _refuse_odd(folder, path, top)

    def fill(target: Path) -> None:
        ignore = shutil.ignore_patterns(*SKIPPED)
        shutil.copytree(folder, target, ignore=ignore, symlinks=True, dirs_exist_ok=True)

    return store.tree("trees", tree_digest(folder), origin, fill)


def _refuse_odd(folder: Path, path: Path, top: Path) -> None:
    """Raise PatchlaneError for what a copy of ``folder`` would wait for, or copy from elsewhere."""
    if path.is_symlink():
        try:
            aim = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            why = "is a link that leads nowhere"
            raise PatchlaneError(f"--upstream {folder}: {path} {why}", f"rm {shlex.quote(str(path))}") from error
        inside = aim.is_relative_to(top) and not path.readlink().is_absolute()
        if not inside:
            why = f"is a link out of the folder, to {path.readlink()}"
            raise PatchlaneError(f"--upstream {folder}: {path} {why}", f"put a copy in its place, or rm {path}")
    elif not path.is_file():
        raise PatchlaneError(f"--upstream {folder}: {path} is not a file", f"rm {shlex.quote(str(path))}")
