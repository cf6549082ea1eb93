"""The audit's index from packs, receipts and the store's trees: whatever a receipt shows, as digests of functions."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from patchlane.base.errors import CannotTestHere
from patchlane.base.files import file_sha256, temporary
from patchlane.known.functions import functions
from patchlane.known.index import SCHEMA, Index, KnownPack, KnownState, KnownTree, load, path_in
from reproducers.base.verdicts import BROKEN, HEALTHY, Verdict
from reproducers.evidence import booking
from reproducers.evidence.manifest import content_of, derived
from reproducers.evidence.receipts import statement_of
from reproducers.evidence.shelf import chain
from reproducers.record import schema
from reproducers.record.entry import Entry, Manifest
from reproducers.record.receipt import Statement
from reproducers.record.schema import Pack, Pin
from reproducers.studies.installed.described import days, described, releases_of, repositories
from reproducers.upstream import patching, pins
from reproducers.upstream.store import Store

REFUTED = (Verdict.FIX_INEFFECTIVE, Verdict.FIX_REGRESSES)
COMMAND = "python -m reproducers.audit --write && python -m reproducers.manifest refresh --no-import"
Said = tuple[object, ...]  # name, release, state, patch and what is beside it of one tree
Code = dict[str, str]  # {"path:qualified name": digest} of a few files


@dataclass
class Tried:
    """What receipts say of one tree with one set of needs: the newest verdict of each lane that could test."""

    pin: Pin
    needs: tuple[str, ...]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    patches: dict[str, Path | None] = field(default_factory=dict)  # by lane; None: changed since, or no patch

    @property
    def state(self) -> KnownState | None:
        """``buggy`` or ``fixed``; None where lanes disagree or saw neither."""
        said = set(self.verdicts.values())
        if said and said <= {*BROKEN, *REFUTED}:
            return "buggy"
        return "fixed" if said and said <= set(HEALTHY) else None

    @property
    def patch(self) -> Path | None:
        """The patch that mends it: validated on every lane that tried one, and not changed since."""
        said = [lane for lane, verdict in self.verdicts.items() if verdict is Verdict.REPRODUCED_AND_FIXED]
        refuted = any(verdict in REFUTED for verdict in self.verdicts.values())
        applied = {self.patches[lane] for lane in said}
        return applied.pop() if len(applied) == 1 and not refuted else None


def tried(pack: Pack, root: Path) -> list[Tried]:
    """All trees of which receipts under ``root`` say something, releases first, oldest first."""
    by_tree = dict[tuple[str, tuple[str, ...]], Tried]()
    for path in chain(root / f"{pack.number:02d}"):
        body = statement_of(path)
        seen = body.details
        if seen.pin is None or not booking.counts(seen) or booking.mismatch(pack, body):
            continue
        _say(by_tree, pack, seen.pin, seen.at, seen.lane, seen.verdict, _patch(pack, body))
        if "REGRESSION_GUARD_PASSED" in seen.sentinels and seen.fixed_pin:
            _say(by_tree, pack, seen.fixed_pin, "fixed", seen.lane, Verdict.FIXED_UPSTREAM, None)
    return sorted(by_tree.values(), key=lambda each: (*_order(each.pin), each.needs))


def _say(
    by_tree: dict[tuple[str, tuple[str, ...]], Tried],
    pack: Pack,
    pin: Pin,
    at: str,
    lane: str,
    verdict: Verdict,
    patch: Path | None,
) -> None:
    needs = tuple(pack.pins.get(at, pack.pins["live"]).needs)
    each = by_tree.setdefault((pin.origin.key, needs), Tried(pin, needs))
    each.verdicts[lane], each.patches[lane] = verdict, patch


def _patch(pack: Pack, body: Statement) -> Path | None:
    """The patch that a receipt is about, where it still is the pack's."""
    patch = pack.patch_at(body.details.at)
    return patch if patch and body.digests.get(patch.name) == file_sha256(patch) else None


def _order(pin: Pin) -> tuple[bool, Version, str]:
    try:
        return (not pin.release, Version(pin.release or "0"), pin.origin.key)
    except InvalidVersion:
        return (True, Version("0"), pin.origin.key)


def made(packs: list[Pack], root: Path, store: Store, before: Index) -> tuple[Index, list[str]]:
    """(the index that packs and the receipts under ``root`` give, what could not be made anew).

    Trees that cannot be got keep what ``before`` says of them. Where anything changed, its date is that of the newest
    receipt.
    """
    result, wanting = dict[str, KnownPack](), list[str]()
    source = _Source(store)
    for pack in packs:
        if not pack.names_bug:
            continue
        known = before.packs.get(pack.id)
        trees = tuple(_trees(pack, tried(pack, root), source, known.trees if known else (), wanting))
        if trees:
            result[pack.id] = described(pack, trees, root)
    fresh = Index(SCHEMA, before.date, result, repositories(packs), releases_of(packs))
    newest = max((days(pack, root)[1] for pack in packs if pack.id in result), default=before.date)
    return (fresh if fresh == before else replace(fresh, date=newest)), wanting


class Faults:
    """What the file of fingerprints says of trees that the receipts under ``root`` do not say, a line a tree.

    States, releases and patches follow from receipts alone, texts and patches from the packs; the digests of functions
    need the trees.
    """

    def __init__(self, packs: list[Pack], root: Path) -> None:
        self.path, self.root, self.names = path_of(packs), root, {pack.id for pack in packs}
        self.stated = load(self.path).packs if self.path.is_file() else None
        self._rows = list[str]()

    def look(self, pack: Pack) -> None:
        """Compare one pack."""
        if self.stated is None:
            return
        due = set(_said(pack, tried(pack, self.root))) if pack.names_bug else set[Said]()
        entry = self.stated.get(pack.id)
        trees = entry.trees if entry else ()
        said = {(tree.name, tree.release, tree.state, tree.patch, *sorted(tree.beside.items())) for tree in trees}
        for other in sorted(due ^ said, key=str):
            who = "receipts say" if other in due else "it says"
            what = f"{pack.id} at {other[0]}: {who} {other[2]}, and not both"
            self._rows.append(f"packs/{self.path.name}: {what}; fix: {COMMAND}")
        if entry and due == said and entry != described(pack, trees, self.root):
            what = f"{pack.id}: its title, claim, harm, effect, day, threads or patches are not the pack's"
            self._rows.append(f"packs/{self.path.name}: {what}; fix: {COMMAND}")

    def rows(self) -> list[str]:
        """A line for each fault of the packs that were looked at, and for each entry of no pack."""
        foreign = sorted((self.stated or {}).keys() - self.names)
        return [*self._rows, *(f"packs/{self.path.name}: {name}: no such pack" for name in foreign)]


def compared(packs: list[Pack], root: Path) -> tuple[Manifest, list[str]]:
    """(the manifest that receipts give, what the file of fingerprints says otherwise); each receipt is read once."""
    entries, wrong = dict[str, Entry](), Faults(packs, root)
    for pack in packs:
        entries[pack.id] = derived(pack, root)
        wrong.look(pack)
    return content_of(packs, root, entries), wrong.rows()


def _said(pack: Pack, known: list[Tried]) -> Iterator[Said]:
    deciding = _deciding(pack)
    for each in known:
        states: list[KnownState] = [each.state] if each.state else []
        for state in [*states, "patched"] if states and each.patch else states:
            tree = _tree(pack, each, state, each.patch, {}, set(), deciding)
            yield (tree.name, tree.release, tree.state, tree.patch, *sorted(tree.beside.items()))


def path_of(packs: list[Pack]) -> Path:
    """Where the index lies: beside the packs."""
    return path_in(packs[0].folder.parent if packs else schema.ROOT / "packs")


class _Source:
    """Files of trees in the store; each tree is checked once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.roots = dict[tuple[str, str], Path | CannotTestHere]()

    def root(self, pack: Pack, pin: Pin) -> Path:
        """The folder of a pin's tree; CannotTestHere where it cannot be got."""
        key = (pack.upstream.distribution, pin.origin.key)
        if key not in self.roots:
            try:
                self.roots[key] = pins.pin_tree(self.store, pack, pin).path
            except CannotTestHere as error:
                self.roots[key] = error
        root = self.roots[key]
        if isinstance(root, CannotTestHere):
            raise root
        return root


def _trees(
    pack: Pack, known: list[Tried], source: _Source, before: tuple[KnownTree, ...], wanting: list[str]
) -> Iterator[KnownTree]:
    """The trees of one pack, each with its functions; the patched tree follows the one that its patch is for."""
    rows = list[tuple[Tried, KnownState, Path | None, Code]]()
    kept = list[KnownTree]()
    wanted = {path for each in known if each.patch for path in _paths(pack, each.patch)}
    for each in known:
        if each.state is None:
            continue
        if not wanted:  # no patch says which functions matter: the release alone is what is known
            rows.append((each, each.state, None, {}))
            continue
        try:
            root = source.root(pack, each.pin)
        except CannotTestHere:
            kept += [tree for tree in before if tree.name == each.pin.origin.key]
            wanting.append(f"{pack.id} at {each.pin.origin}")
            continue
        pristine = code(patching.import_root(root, pack.upstream.source_root), wanted)
        rows.append((each, each.state, each.patch, pristine))
        if each.patch:
            rows.append((each, "patched", each.patch, patched_code(pack, root, each.patch, wanted)))
    names = {name for tree in kept for name in tree.code} | _changed(rows)
    deciding = _deciding(pack)
    fresh = [_tree(pack, *row, names, deciding) for row in rows]
    order = {each.pin.origin.key: place for place, each in enumerate(known)}
    unique = {repr(tree): tree for tree in [*fresh, *kept]}
    yield from sorted(unique.values(), key=lambda tree: order[tree.name])


def _paths(pack: Pack, patch: Path) -> set[str]:
    """The Python files that a patch names, below the import root."""
    place = pack.upstream.source_root.removeprefix(".").rstrip("/")
    paths = (str(file.path).removeprefix(f"{place}/") for file in patching.files(patch))
    return {path for path in paths if path.startswith(f"{pack.upstream.package}/") and path.endswith(".py")}


def code(root: Path, paths: set[str]) -> Code:
    """The digests of all functions of these files of an import root; none of a file that is not there."""
    digests = Code()
    for path in sorted(paths):
        if (root / path).is_file():
            digests |= {f"{path}:{name}": f.digest for name, f in functions((root / path).read_bytes()).items()}
    return digests


def patched_code(pack: Pack, tree: Path, patch: Path, paths: set[str]) -> Code:
    """The same of the tree with the patch; only the files in question are copied."""
    strip, outer = patching.strip_for(tree, pack.upstream.source_root), pack.upstream.source_root
    with temporary() as scratch:
        copy = scratch
        base = copy / patching.import_root(tree, outer).relative_to(tree)
        base.mkdir(parents=True, exist_ok=True)
        for path in paths:
            origin = patching.import_root(tree, outer) / path
            if origin.is_file():
                (base / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(origin, base / path)
        patching.apply(copy, patch, strip)
        return code(base, paths)


def _changed(rows: list[tuple[Tried, KnownState, Path | None, Code]]) -> set[str]:
    """The functions that some patch changes, adds or deletes."""
    names = set[str]()
    for (_, _, _, before), (_, state, _, after) in itertools.pairwise(rows):
        if state == "patched":
            names |= {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return names


def _tree(
    pack: Pack, each: Tried, state: KnownState, patch: Path | None, digests: Code, names: set[str], deciding: set[str]
) -> KnownTree:
    needs = itertools.chain(*pins.need_sets(pack, each.needs).values())
    beside = {need.distribution: need.release for need in needs if need.distribution in deciding}
    return KnownTree(
        name=each.pin.origin.key,
        release=None if each.pin.stacked_on else each.pin.release,
        state=state,
        patch=patch.name if patch else None,
        beside=beside if state != "patched" else {},
        code={name: digests.get(name) for name in sorted(names)},
    )


def _deciding(pack: Pack) -> set[str]:
    """Distributions of which another release beside the same tree gives another answer, as the pins say."""
    names = set[str]()
    for first, second in itertools.combinations(pack.pins, 2):
        pair = [pack.pins[first], pack.pins[second]]
        if pair[0].origin == pair[1].origin and pack.healthy_at(first) != pack.healthy_at(second):
            mine, theirs = ({(n.distribution, n.release) for n in pins.needs_of(pack, pin)} for pin in pair)
            names |= {distribution for distribution, _ in mine ^ theirs}
    return names
