"""How the patches of packs meet the newest releases of their upstreams; no arm runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import temporary
from patchlane.base.wording import short
from patchlane.patches import landing
from reproducers.desk.patches import trees
from reproducers.evidence import shelf
from reproducers.record.schema import Pack
from reproducers.studies.versions import answers, commits, releases
from reproducers.studies.versions import partial as partly
from reproducers.studies.versions.answers import Answer, Word
from reproducers.upstream import git, index, patching, pins
from reproducers.upstream.patching import ApplyClass
from reproducers.upstream.pins import Source
from reproducers.upstream.store import Store

WORDS = {ApplyClass.CLEAN: "applies", ApplyClass.ALREADY_APPLIED: "already in", ApplyClass.CONFLICT: "conflicts"}
OFFSET = "offset"  # ``patch -F0`` takes it, as what is installed is patched; a run wants a patch without an offset
BEST = ("applies", OFFSET, "already in", "conflicts")
CANNOT = "cannot test"
NO_FILE = "No such file or directory"  # git's words where the tree does not have what the patch changes
COLOURS = {"applies": "green", OFFSET: "green", "already in": "cyan", "conflicts": "red", CANNOT: "yellow"}


LARGE = 32 * 2**20  # bytes of a wheel from which on its files are read by parts
FOLDERS = (shelf.COMMITTED, Path("build/receipts"))  # where receipts are looked for, as a sweep does


class Met(NamedTuple):
    """One patch on one release or commit.

    ``word``: applies, offset, already in, conflicts or cannot test. ``patch``: the file's name; of several patches of a
    pack the first that applies, else the first with an offset, else the first that is in, else fix.patch. ``why``: what
    git or patch said. ``read``: what was read of a tree that is not here whole. ``known``: bug or healthy, where a
    receipt says so of a tree on which the patch does not apply exactly; ``receipt`` is its name.
    """

    pack: str
    release: str
    word: str
    patch: str
    why: str
    read: str = ""
    known: str = ""
    receipt: str = ""


class Asked(NamedTuple):
    """Where trees come from: the store, a clone that has commits, and whether large wheels are fetched whole."""

    store: Store
    clone: Path | None = None
    whole: bool = False


def patches(pack: Pack) -> list[Path]:
    """The patches of a pack that change something, fix.patch first, then those of its pins that stand on no other."""
    own = [pack.folder / pin.patch for pin in pack.pins.values() if pin.patch and not pin.stacked_on]
    return list(dict.fromkeys(path for path in [pack.patch, *own] if path.is_file() and patching.files(path)))


def meet(pack: Pack, label: str, tree: Path, read: str = "") -> Met:
    """How the pack's patches meet a tree, the best of them. PatchlaneError where one is no unified diff."""
    strip = patching.strip_for(tree, pack.upstream.source_root)
    fits = [(path.name, *_fit(tree, path, strip)) for path in patches(pack)]
    name, word, why = min(fits, key=lambda fit: BEST.index(fit[1]))
    found = None if word == "applies" else receipt_of(pack, label)
    known = (found.word.value, found.receipt_name) if found else ("", "")
    return Met(pack.id, label, word, name, why, read, *known)


def receipt_of(pack: Pack, tree: str) -> Answer | None:
    """What the newest receipt of a lane says of a release or a full SHA; None where none says bug or healthy."""
    found = [answers.kept(pack, lane, tree, FOLDERS) for lane in sorted(pack.lanes)]
    return next((answer for answer in found if answer and answer.word in (Word.BUG, Word.HEALTHY)), None)


def _fit(tree: Path, patch: Path, strip: int) -> tuple[str, str]:
    """(how a patch meets a tree, what was said of it)."""
    exact = patching.classify(tree, patch, strip)
    if exact.kind is ApplyClass.CONFLICT and not (landed := landing.land(tree, patch, strip)).refused:
        return OFFSET, f"applies with an offset: {landed.said}"
    return WORDS[exact.kind], exact.message


def newest(packs: list[Pack], count: int, asked: Asked) -> list[Met]:
    """Every pack with a patch on the newest ``count`` releases of its upstream, newest last.

    A release that cannot be had is one row a pack that says so; CannotTestHere only where the index does not answer.
    """
    rows = list[Met]()
    for distribution in dict.fromkeys(pack.upstream.distribution for pack in packs if patches(pack)):
        of_it = [pack for pack in packs if pack.upstream.distribution == distribution and patches(pack)]
        published = index.releases(distribution)
        for release in releases.choose(distribution, newest=count, loadable=False).taken:
            rows += _each(of_it, release, partial(_on_release, of_it, release, published[release].files, asked))
    return _said(rows)


def named(packs: list[Pack], trees: Callable[[Pack], list[str]], asked: Asked) -> list[Met]:
    """Every pack with a patch on the trees that ``trees`` gives for it: settled names, as ``--at`` has them.

    A tree that cannot be had is a row that says so; CannotTestHere where none could be had.
    """
    rows = list[Met]()
    for pack in (pack for pack in packs if patches(pack)):
        for at in trees(pack):
            pin = pack.pins.get(at)
            label = str((pin.release or pin.sha) if pin else at)
            rows += _each([pack], label, partial(_on_tree, pack, at, label, asked))
    return _said(rows)


def _each(packs: list[Pack], label: str, meeting: Callable[[], list[Met]]) -> list[Met]:
    try:
        return meeting()
    except PatchlaneError as error:
        why = f"{error.what}; {error.remedy}" if isinstance(error, index.NoParts) else error.what
        return [Met(pack.id, label, CANNOT, pack.patch.name, why) for pack in packs]


def _said(rows: list[Met]) -> list[Met]:
    """The rows by pack; CannotTestHere where none could be tried."""
    if rows and all(row.word == CANNOT for row in rows):
        raise CannotTestHere(rows[0].why, "check the network, or leave --offline out")
    return sorted(rows, key=lambda row: row.pack)  # stable: releases stay in order


def _on_tree(pack: Pack, at: str, label: str, asked: Asked) -> list[Met]:
    if at == pins.UPSTREAM and asked.clone:
        return [meet(pack, label, git.checkout_tree(asked.store, asked.clone, sha=None, allow_dirty=True).path)]
    pin = pins.resolve(asked.store, pack, at)
    if pin.stacked_on or (pin.release is None and asked.clone is None):
        return [meet(pack, label, pins.pin_tree(asked.store, pack, pin, Source(asked.clone)).path)]
    if asked.clone and (sha := pin.sha or commits.named(pack, asked.clone, [label])[0]):
        with temporary() as scratch:
            partly.of_commit(asked.clone, sha, _wanted([pack]), _depth([pack]), Path(scratch))
            return [meet(pack, label, Path(scratch))]
    return _on_release([pack], label, pin.artifacts, asked)


def _on_release(packs: list[Pack], release: str, files: dict[str, str], asked: Asked) -> list[Met]:
    with laid_out(packs[0].upstream.distribution, release, files, asked, _wanted(packs), _depth(packs)) as (tree, read):
        return [meet(pack, release, tree, read) for pack in packs]


@contextlib.contextmanager
def laid_out(
    distribution: str, release: str, files: dict[str, str], asked: Asked, wanted: partly.Wanted, depth: int
) -> Iterator[tuple[Path, str]]:
    """(a release's tree, or of a large wheel the files that are wanted, "" or what was read of it, in words).

    Raises index.NoParts for a large file that can only be had whole, CannotTestHere for one that cannot be had.
    """
    filename, sha256 = pins.choose(files)
    here = asked.whole or asked.store.offline or asked.store.has(filename, sha256)
    size = 0 if here else index.size(distribution, filename)
    if size is not None and size <= LARGE:
        yield asked.store.release_tree(distribution, release, filename, sha256).path, ""
        return
    large = f"{filename} has {'an unknown size' if size is None else f'{size / 2**20:.1f} MiB'}"
    if not filename.endswith(".whl"):
        raise index.NoParts(f"{large}, and an sdist can only be read whole", "--download fetches it")
    with temporary() as scratch:
        try:
            read = partly.of_wheel(distribution, filename, wanted, depth, Path(scratch))
        except index.NoParts as error:
            raise index.NoParts(f"{large}, and the index serves it only whole", "--download fetches it") from error
        yield Path(scratch), read


def _depth(packs: list[Pack]) -> int:
    """How many folders above the import path a tree in repository layout may have."""
    return max(landing.depth(pack.upstream.source_root) - 1 for pack in packs)


def _wanted(packs: list[Pack]) -> partly.Wanted:
    """What the patches of the packs touch, of the names of all files of a tree."""

    def wanted(names: Iterable[str]) -> set[str]:
        touched = set[str]()
        for pack in packs:
            root = pack.upstream.source_root
            inside = root == "." or any(name.startswith(f"{root}/") for name in names)
            strip = 1 if inside else landing.depth(root)
            touched |= {name for path in patches(pack) for name in trees.touched(patching.files(path), strip)}
        return touched

    return wanted


def table(packs: list[Pack], rows: list[Met], out: Console) -> None:
    """One table an upstream: a line a pack, a column a release; packs without a patch are named under it."""
    for distribution in dict.fromkeys(pack.upstream.distribution for pack in packs):
        names = {pack.id for pack in packs if pack.upstream.distribution == distribution}
        mine = [row for row in rows if row.pack in names]
        if mine:
            shown = Table(box=None, padding=(0, 2, 0, 0), title=distribution, title_justify="left")
            columns = list(dict.fromkeys(row.release for row in mine))
            for column in ("pack", *columns):
                shown.add_column(short(column), no_wrap=True)
            for name in sorted({row.pack for row in mine}):
                of_it = {row.release: row for row in mine if row.pack == name}
                shown.add_row(name, *(_cell(of_it[column]) if column in of_it else "" for column in columns))
            out.print(shown, "", sep="\n")
            for said in dict.fromkeys(f"{short(row.release)}: {row.read}" for row in mine if row.read):
                out.print(f"[dim]{escape(said)}[/]")
            for said in dict.fromkeys(f"{short(row.release)}: {row.why}" for row in mine if row.word == CANNOT):
                out.print(f"[yellow]{escape(said)}[/]")
    without = [pack.id for pack in packs if not patches(pack)]
    if without:
        out.print(f"without a patch: {', '.join(without)}")


def _cell(row: Met) -> str:
    other = "" if row.patch == "fix.patch" or row.word not in ("applies", OFFSET) else f" ({row.patch})"
    word = "applies, offset" if row.word == OFFSET else row.word
    known = f", {row.known}" if row.known else ""
    return f"[{COLOURS[row.word]}]{word}{known}[/]{escape(other)}"


def proposals(packs: list[Pack], rows: list[Met]) -> list[str]:
    """Changes of packs that the newest release speaks for, as text; whoever reads them decides."""
    said = []
    for pack in packs:
        mine = [row for row in rows if row.pack == pack.id and row.word != CANNOT]
        if not mine:
            continue
        last = mine[-1]
        first = next((row.release for row in mine if row.word == "already in"), last.release)
        if last.word == "already in":
            said.append(f"{pack.id}: retire it from {first} on: the patch is already in {last.release}")
        elif last.known == Word.HEALTHY:
            said.append(f"{pack.id}: retire it from {short(last.release)} on: {last.receipt} says that it is healthy")
        elif last.word == "conflicts" and pack.pins.get("fixed") is None and NO_FILE not in last.why:
            rebase = f"{pack.id}: rebase {last.patch} on {short(last.release)}"
            if last.known:
                said.append(f"{rebase}: {last.receipt} says that the bug is still there")
            else:
                ask = f"python -m reproducers.sweep {pack.id} --newest 1"
                said.append(f"{rebase}, if the bug is still there: {ask}")
    return said
