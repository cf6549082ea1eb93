"""How the patches of packs meet the newest releases of their upstreams; no arm runs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reproducers.base.errors import CannotTestHere, PatchlaneError
from reproducers.record.schema import Pack
from reproducers.studies.versions import releases
from reproducers.upstream import index, patching, pins
from reproducers.upstream.patching import ApplyClass
from reproducers.upstream.store import Store, Tree

WORDS = {ApplyClass.CLEAN: "applies", ApplyClass.ALREADY_APPLIED: "already in", ApplyClass.CONFLICT: "conflicts"}
OFFSET = "offset"  # ``patch -F0`` takes it, as what is installed is patched; a run wants a patch without an offset
BEST = ("applies", OFFSET, "already in", "conflicts")
CANNOT = "cannot test"
NO_FILE = "No such file or directory"  # git's words where the tree does not have what the patch changes
COLOURS = {"applies": "green", OFFSET: "green", "already in": "cyan", "conflicts": "red", CANNOT: "yellow"}


class Met(NamedTuple):
    """One patch on one release.

    ``word``: applies, offset, already in, conflicts or cannot test. ``patch``: the file's name; of several patches of a
    pack the first that applies, else the first with an offset, else the first that is in, else fix.patch. ``why``: what
    git or patch said.
    """

    pack: str
    release: str
    word: str
    patch: str
    why: str


def patches(pack: Pack) -> list[Path]:
    """The patches of a pack, fix.patch first, then those of its pins that stand on no other pack."""
    own = [pack.folder / pin.patch for pin in pack.pins.values() if pin.patch and not pin.stacked_on]
    return list(dict.fromkeys(path for path in [pack.patch, *own] if path.is_file()))


def meet(pack: Pack, release: str, tree: Tree) -> Met:
    """How the pack's patches meet a tree, the best of them. PatchlaneError where one is no unified diff."""
    strip = patching.strip_for(tree.path, pack.upstream.source_root)
    fits = [(path.name, *_fit(tree.path, path, strip)) for path in patches(pack)]
    name, word, why = min(fits, key=lambda fit: BEST.index(fit[1]))
    return Met(pack.id, release, word, name, why)


def _fit(tree: Path, patch: Path, strip: int) -> tuple[str, str]:
    """(how a patch meets a tree, what was said of it)."""
    exact = patching.classify(tree, patch, strip)
    if exact.kind is ApplyClass.CONFLICT and not (landing := patching.land(tree, patch, strip)).refused:
        return OFFSET, f"applies with an offset: {landing.said}"
    return WORDS[exact.kind], exact.message


def newest(packs: list[Pack], count: int, store: Store) -> list[Met]:
    """Every pack with a patch on the newest ``count`` releases of its upstream, newest last.

    A release that cannot be had is one row a pack that says so; CannotTestHere only where the index does not answer.
    """
    rows = list[Met]()
    for distribution in dict.fromkeys(pack.upstream.distribution for pack in packs if patches(pack)):
        of_it = [pack for pack in packs if pack.upstream.distribution == distribution and patches(pack)]
        published = index.releases(distribution)
        for release in releases.choose(distribution, newest=count, loadable=False).taken:
            filename, sha256 = pins.choose(published[release].files)
            try:
                tree = store.release_tree(distribution, release, filename, sha256)
            except PatchlaneError as error:
                rows += [Met(pack.id, release, CANNOT, pack.patch.name, error.what) for pack in of_it]
                continue
            rows += [meet(pack, release, tree) for pack in of_it]
    if rows and all(row.word == CANNOT for row in rows):
        raise CannotTestHere(rows[0].why, "check the network, or leave --offline out")
    return sorted(rows, key=lambda row: row.pack)  # stable: releases stay in order


def table(packs: list[Pack], rows: list[Met], out: Console) -> None:
    """One table an upstream: a line a pack, a column a release; packs without a patch are named under it."""
    for distribution in dict.fromkeys(pack.upstream.distribution for pack in packs):
        names = {pack.id for pack in packs if pack.upstream.distribution == distribution}
        mine = [row for row in rows if row.pack in names]
        if mine:
            shown = Table(box=None, padding=(0, 2, 0, 0), title=distribution, title_justify="left")
            columns = list(dict.fromkeys(row.release for row in mine))
            for column in ("pack", *columns):
                shown.add_column(column, no_wrap=True)
            for name in sorted({row.pack for row in mine}):
                of_it = {row.release: row for row in mine if row.pack == name}
                shown.add_row(name, *(_cell(of_it[column]) for column in columns))
            out.print(shown, "", sep="\n")
    without = [pack.id for pack in packs if not patches(pack)]
    if without:
        out.print(f"without a patch: {', '.join(without)}")


def _cell(row: Met) -> str:
    other = "" if row.patch == "fix.patch" or row.word not in ("applies", OFFSET) else f" ({row.patch})"
    word = "applies, offset" if row.word == OFFSET else row.word
    return f"[{COLOURS[row.word]}]{word}[/]{escape(other)}"


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
        elif last.word == "conflicts" and pack.pins.get("fixed") is None and NO_FILE not in last.why:
            said.append(f"{pack.id}: rebase {last.patch} on {last.release}, if the bug is still there")
    return said
