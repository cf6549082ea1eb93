"""Turn a request (a pin's name, a release, a SHA, a folder) into trees of the store."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import KEY, within
from reproducers.record.origin import Origin
from reproducers.record.schema import Need, Pack, Pin, load_needs
from reproducers.upstream import archive, git, index, patching
from reproducers.upstream.built import build_commit, build_extension, trim_fatbin
from reproducers.upstream.store import Store, Tree, record

UPSTREAM = "upstream"  # the folder of --upstream as it stands; in a receipt: a tree without pin, release or SHA
SHA = re.compile(r"[0-9a-f]{40}")
PREFIX = re.compile(r"[0-9a-f]{7,40}")
Sets = Mapping[str, list[Need]]  # {set of needs.yaml: its members}


@dataclass(frozen=True)
class Source:
    """Where a tree is taken from; by default the store, and the package index or the upstream's repository.

    ``upstream``: a clone that has the pin's commit, or a folder to test as it stands. ``allow_dirty``: the clone may
    have local changes. ``build``: a command that builds the commit. ``tags``: those of another interpreter's wheels.
    """

    upstream: Path | None = None
    allow_dirty: bool = False
    build: str | None = None
    tags: Sequence[Tag] | None = None


PUBLISHED = Source()


class Subject(NamedTuple):
    """The tree to test. ``at`` names it: a pin's name, a release, a SHA or ``upstream``, which has no pin.

    ``artifact``: sha256 of the package index's file that the tree was unpacked from, None for other trees.
    """

    at: str
    pin: Pin | None
    tree: Tree
    artifact: str | None = None


def settle(pack: Pack, at: str, folder: Path | None = None) -> str:
    """``--at`` in one form: a pin's name, a release, a full SHA, or ``upstream`` for ``folder``.

    ``at`` may be a pin's name, release or SHA; any release; a tag (``v2.3.2.post1``) of a pin, a release or the clone
    ``folder``; or at least 7 digits of a SHA that a pin or the clone has. Raises PatchlaneError for anything else. Uses
    no network.
    """
    if at == UPSTREAM and folder is not None:
        return at
    release = re.sub(r"^(core_)?v(?=\d)", "", at)
    if name := pack.pin_name(at) or pack.pin_name(release):
        return name
    if PREFIX.fullmatch(at):
        names = {pin.sha: name for name, pin in reversed(pack.pins.items()) if pin.sha and pin.sha.startswith(at)}
        if len(names) == 1:
            return names.popitem()[1]
        if SHA.fullmatch(at):
            return at
        if folder and not names and (sha := git.commit(folder, at)):
            return sha
    if folder and (sha := git.tagged(folder, at)):
        return sha
    if _is_release(release):
        return release
    raise PatchlaneError(
        f"--at {at!r}: neither a pin of {pack.id} nor a release nor exactly one known commit or tag",
        f"--at {', '.join(pack.pins)}, a release, or, with --upstream CLONE, a tag of that clone or 7 digits of a SHA",
    )


def _is_release(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return not PREFIX.fullmatch(text)


def resolve(store: Store, pack: Pack, at: str) -> Pin:
    """The pin that the settled ``at`` names: one of the pack's, a release (with the index's digests) or a SHA.

    Raises CannotTestHere for an unpinned release if the store is offline or the index does not answer.
    """
    name = pack.pin_name(at)
    if name is not None:
        return pack.pins[name]
    needs = pack.pins["live"].needs
    if SHA.fullmatch(at):
        return Pin(sha=at, needs=needs)
    if store.offline:
        raise CannotTestHere(f"{pack.id} pins no {at}, and the run is offline", index.ONLINE)
    return Pin(release=at, artifacts=index.release_files(pack.upstream.distribution, at), needs=needs)


def subject(store: Store, pack: Pack, at: str, source: Source = PUBLISHED) -> Subject:
    """The tree that the settled ``at`` names.

    A clean checkout counts as its commit. Any other folder counts as the pin whose tree in the store has the same
    digest, else as ``upstream``. With a command that builds it is the commit as that builds it, which no pin names.
    """
    if source.build:
        plain = subject(store, pack, at, dataclasses.replace(source, build=None))
        built = build_commit.ensure(store, plain.tree, source.build)
        commit = str(built.origin.sha)
        return Subject(commit, Pin(sha=commit, needs=pack.pins["live"].needs), built)
    if at != UPSTREAM:
        pin = resolve(store, pack, at)
        unpacked = pin.release is not None and source.upstream is None
        return Subject(at, pin, pin_tree(store, pack, pin, source), choose(pin.artifacts)[1] if unpacked else None)
    assert source.upstream is not None  # settle took ``upstream`` for this folder
    tree = git.checkout_tree(store, source.upstream, sha=None, allow_dirty=source.allow_dirty)
    pins = {name: pin for name, pin in pack.pins.items() if not pin.stacked_on}
    if (sha := tree.origin.sha) and not tree.origin.dirty:
        for name, pin in pins.items():
            if pin.sha == sha:
                return Subject(name, pin, tree)
        return Subject(sha, Pin(sha=sha, needs=pack.pins["live"].needs), tree)
    for name, pin in pins.items():
        release = pin.origin
        for artifact in pin.artifacts.values():
            if stored_digest(store, artifact) == tree.digest:
                named = dataclasses.replace(tree, origin=release.of(pack.upstream.distribution))
                return Subject(name, pin, named, artifact)
        if pin.sha and stored_digest(store, pin.sha) == tree.digest:
            return Subject(name, pin, dataclasses.replace(tree, origin=Origin(kind="commit", sha=pin.sha)))
    return Subject(UPSTREAM, None, tree)


def stored_digest(store: Store, key: str) -> str | None:
    """The content digest of the store's tree for an artefact's sha256 or a commit's SHA, None if there is none."""
    return record(within(store.root / "trees", key, KEY)).get("digest")


@cache
def _own_ranks() -> dict[Tag, int]:
    """{tag: rank} of this interpreter, 0 the best. Cached: a run compares some hundred needs with it."""
    return {tag: rank for rank, tag in enumerate(sys_tags())}


def own_tags() -> Set[Tag]:
    """The tags of wheels that this interpreter can load."""
    return _own_ranks().keys()


def choose(artifacts: dict[str, str], tags: Sequence[Tag] | None = None) -> tuple[str, str]:
    """(file name, sha256) of the best artefact for an interpreter: its wheel, else an sdist, else any Linux wheel.

    Any Linux wheel serves code that is only read and imported as Python: nothing of a wheel is installed.
    """
    ranks = _own_ranks() if tags is None else {tag: rank for rank, tag in enumerate(tags)}

    def rank(filename: str) -> tuple[int, int]:
        try:
            offered = parse_wheel_filename(filename)[3]
        except InvalidWheelFilename:
            return (1, 0)
        best = min((ranks[t] for t in offered if t in ranks), default=None)
        foreign = 2 if any("linux" in t.platform and "x86_64" in t.platform for t in offered) else 3
        return (0, best) if best is not None else (foreign, 0)

    name = min(artifacts, key=lambda f: (rank(f), f))
    return name, artifacts[name]


def need_artifact(need: Need, tags: Sequence[Tag] | None = None) -> tuple[str, str]:
    """(file name, sha256) of a need's wheel for an interpreter, or of its sdist. Raises CannotTestHere without one."""
    ranks = (_own_ranks() if tags is None else dict.fromkeys(tags)).keys()
    for filename, sha256 in need.artifacts.items():
        if not filename.endswith(".whl") or parse_wheel_filename(filename)[3] & ranks:
            return filename, sha256
    raise CannotTestHere(
        f"{need.distribution} {need.release}: no pinned wheel that this interpreter can load",
        "add its wheel to packs/releases.yaml",
    )


def need_sets(pack: Pack, names: Iterable[str]) -> Sets:
    """The sets of these names in the needs.yaml beside the pack; a pin's are those of ``pin.needs``."""
    known = load_needs(pack.folder.parent)
    return {name: known[name] for name in names}


def needs_of(pack: Pack, pin: Pin) -> list[Need]:
    """The distributions that a pin needs, over all its sets."""
    return [need for needs in need_sets(pack, pin.needs).values() for need in needs]


def on_lane(needs: list[Need], lane: str) -> list[Need]:
    """The needs of a set that a lane uses."""
    return [need for need in needs if need.lane in (None, lane)]


def need_set_key(needs: list[Need], tags: Sequence[Tag] | None = None) -> str:
    """The store key of a set's tree: the artefacts chosen for an interpreter, and how each is trimmed."""
    marks = [need_artifact(need, tags)[1] + (f" {need.trim}" if need.trim else "") for need in needs]
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()


def need_trees(store: Store, sets: Sets, lane: str) -> list[Tree]:
    """One tree a set of needs, side by side as in one site-packages: they load each other's libraries.

    What has to be built for this host is built, and joined to its set.
    """
    trees = []
    for name, members in sets.items():
        needs = on_lane(members, lane)
        base, *sources = _parts(store, name, needs, None)
        builds = [need for need in needs if need.build]
        trees.append(_joined(store, name, base, builds, sources) if builds else base)
    return trees


def need_parts(store: Store, sets: Sets, lanes: Iterable[str], tags: Sequence[Tag]) -> list[Tree]:
    """Every tree from which ``need_trees`` makes its trees for an interpreter with these tags. Builds nothing."""
    wanted = itertools.product(sets.items(), sorted(lanes))
    return [tree for (name, needs), lane in wanted for tree in _parts(store, name, on_lane(needs, lane), tags)]


def _parts(store: Store, name: str, needs: list[Need], tags: Sequence[Tag] | None) -> list[Tree]:
    """The set's tree of the needs without a build, then the source tree of each need with one."""
    ready = [(need, *need_artifact(need, tags)) for need in needs if need.build is None]
    sources = [(need, *need_artifact(need, tags)) for need in needs if need.build]

    def fill(target: Path) -> None:
        for need, filename, sha256 in ready:
            inner = target / ".artefact"
            inner.mkdir()
            archive.unpack(store.artifact(need.distribution, filename, sha256), inner)
            if need.trim:
                trim_fatbin.trim_tree(inner, int(need.trim.removeprefix("sm_")), need.distribution)
            archive.lift(inner, target)

    key = need_set_key([need for need, _, _ in ready], tags)
    base = store.tree("trees", key, Origin(kind="made", name=f"needs {name}"), fill)
    return [base, *(store.release_tree(n.distribution, n.release, file, sha) for n, file, sha in sources)]


def _joined(store: Store, name: str, base: Tree, builds: list[Need], sources: list[Tree]) -> Tree:
    """The set together with its needs built here. Links the files, does not copy them."""
    parts = [base]
    for need, source in zip(builds, sources, strict=True):
        assert need.build is not None
        title = f"{need.distribution} {need.release}"
        parts.append(build_extension.ensure(store, title, need.build, source, need_artifact(need)[1]))
    key = hashlib.sha256("\n".join(part.digest for part in parts).encode()).hexdigest()

    def fill(target: Path) -> None:
        for part in parts:
            shutil.copytree(part.path, target, copy_function=_link, dirs_exist_ok=True)

    return store.tree("built", key, Origin(kind="made", name=f"needs {name}, built here"), fill)


def _link(source: str, target: str) -> None:
    """Link a file of the store, or copy it where the host refuses links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def pin_tree(store: Store, pack: Pack, pin: Pin, source: Source = PUBLISHED) -> Tree:
    """The tree under test: the pinned one with the patches of the packs that it is stacked on."""
    tree = base_tree(store, pack, pin, source)
    strip = patching.strip_for(tree.path, pack.upstream.source_root)
    for number in pin.stacked_on:
        patch = next(pack.folder.parent.glob(f"{number:02d}_*/fix.patch"), None)
        if patch is None:
            raise PatchlaneError(f"{pack.id} is stacked on pack {number:02d}, which has none", "git status")
        tree = patching.patched_tree(store, tree, patch, strip, number, pack.upstream.source_root)
    return tree


def base_tree(store: Store, pack: Pack, pin: Pin, source: Source = PUBLISHED) -> Tree:
    """The pinned tree as upstream published it."""
    if (folder := source.upstream) is not None:
        sha = pin.sha or git.tagged(folder, str(pin.release))
        tree = sha and git.checkout_tree(store, folder, sha=sha, allow_dirty=source.allow_dirty)
        if not tree or tree.origin.sha != sha or tree.origin.dirty:
            raise PatchlaneError(
                f"--upstream {folder}: no clone that has {pin.origin}", "leave --at out to test the folder as it stands"
            )
        return tree
    if pin.release is not None:
        filename, sha256 = choose(pin.artifacts, source.tags)
        return store.release_tree(pack.upstream.distribution, pin.release, filename, sha256)
    assert pin.sha is not None
    repository = pin.source or f"https://github.com/{pack.upstream.repo}"
    return git.commit_tree(store, repository, pin.sha, pack.upstream.distribution)


def settle_all(packs: list[Pack], at: str, upstream: Path | None) -> None:
    """Print the tree of each pack whose name for it is not ``at``. Raises PatchlaneError if a pack has no such tree."""
    for pack in packs:
        name = settle(pack, at, upstream)
        label = str(pack.pins[name].origin) if name in pack.pins else name
        if at not in (name, label, UPSTREAM):
            tree = f"pin {name}, {label}" if name in pack.pins else name
            print(f"{pack.id}: --at {at} is {tree}", file=sys.stderr)
