"""The needs of a tree that no pin names: those of the live pin, in the releases that the tree's own metadata asks for.

A wheel says in METADATA what it requires, an sdist in PKG-INFO or pyproject.toml, a checkout in pyproject.toml. Where
packs/needs.yaml pins one release of a distribution and that is allowed, it is taken. Where it pins several that are
allowed, the newest that was out on the day of the tree's own release is taken: what pip took then. Where none is
allowed, the index gives one.
"""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from patchlane.base.errors import CannotTestHere
from reproducers.record.schema import Need, Pack, Pin, load_needs
from reproducers.upstream import index, pins
from reproducers.upstream.pins import Sets
from reproducers.upstream.store import Tree


def need_sets(pack: Pack, pin: Pin | None, tree: Tree, offline: bool) -> tuple[Sets, list[str]]:
    """(the sets that ``tree`` needs, a line for each need that is not the live pin's).

    A pin of the pack has its own sets. CannotTestHere where the tree requires what the index does not have for this
    interpreter.
    """
    if pin is not None and pin in pack.pins.values():
        return pins.need_sets(pack, pin.needs), []
    of_live, sets = pins.need_sets(pack, pack.pins["live"].needs), dict[str, list[Need]]()
    wanted = requirements(tree.path) if of_live else {}
    chooser, said = _Chooser(pack, tree, offline), []
    for name, needs in of_live.items():
        sets[name] = [chooser.fitted(need, wanted.get(_plain(need.distribution))) for need in needs]
        for before, need in zip(needs, sets[name], strict=True):
            if need != before:
                asked = wanted[_plain(need.distribution)]
                said.append(
                    f"{need.distribution} {need.release} for {before.release}: the tree requires {asked or 'any'}"
                )
    return sets, said


def requirements(tree: Path) -> dict[str, SpecifierSet]:
    """{canonical name: allowed releases} of what a tree says that it requires on this interpreter, extras left out."""
    wanted: dict[str, SpecifierSet] = {}
    for text in _stated(tree):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            name = _plain(requirement.name)
            wanted[name] = wanted.get(name, SpecifierSet()) & requirement.specifier
    return wanted


def _stated(tree: Path) -> list[str]:
    """The requirements as they are written, of the first file that states any."""
    for path in [*sorted(tree.glob("*.dist-info/METADATA")), tree / "PKG-INFO"]:
        if path.is_file() and (stated := parse_email(path.read_bytes())[0].get("requires_dist")):
            return stated
    try:
        project: dict[str, Any] = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
        return [str(text) for text in project["project"]["dependencies"]]
    except (OSError, ValueError, LookupError, TypeError):
        return []


def has_file(files: dict[str, str]) -> bool:
    """Whether one of a release's files is for this interpreter: a wheel that it can load, or an sdist."""
    name = pins.choose(files)[0]
    try:
        return bool(parse_wheel_filename(name)[3] & pins.own_tags())
    except InvalidWheelFilename:
        return True


class _Chooser:
    """Takes the release of each need; the index is asked only where needs.yaml alone does not decide."""

    def __init__(self, pack: Pack, tree: Tree, offline: bool) -> None:
        self.pack, self.tree, self.offline = pack, tree, offline
        self.known: dict[str, dict[str, Need]] = {}
        for needs in load_needs(pack.folder.parent).values():
            for need in needs:
                self.known.setdefault(_plain(need.distribution), {}).setdefault(need.release, need)

    def fitted(self, need: Need, wanted: SpecifierSet | None) -> Need:
        """``need`` in the release that ``wanted`` allows; None: the tree does not require it, and any is right."""
        if wanted is None:
            return need
        pinned = self.known[_plain(need.distribution)]
        allowed = {release: one for release, one in pinned.items() if wanted.contains(release, prereleases=True)}
        if len(allowed) == 1 or (allowed and self.offline):
            return need if need.release in allowed else allowed[max(allowed, key=Version)]
        if allowed:
            return allowed[self._of_the_day(need, sorted(allowed, key=Version))]
        return self._from_index(need, wanted)

    def _of_the_day(self, need: Need, allowed: list[str]) -> str:
        """The newest of these releases that was out on the tree's day, else the oldest; the need's own without days."""
        day, published = self._day(), self._published(need.distribution)
        days = {release: published[release].day for release in allowed if release in published}
        if day is None or None in days.values():
            return need.release if need.release in allowed else allowed[-1]
        out = [release for release in allowed if release in days and days[release] <= day]  # type: ignore[operator]
        return out[-1] if out else allowed[0]

    def _from_index(self, need: Need, wanted: SpecifierSet) -> Need:
        day, releases = self._day(), self._published(need.distribution)
        fit = {
            release: published
            for release, published in releases.items()
            if _allowed(release, wanted) and not published.yanked and has_file(published.files)
        }
        out = {release: one for release, one in fit.items() if day is None or one.day is None or one.day <= day} or fit
        if not out or need.build:
            raise CannotTestHere(
                f"the tree requires {need.distribution}{wanted}, which packs/needs.yaml does not pin"
                + (" and the index does not have for this interpreter" if not out else " and would have to be built"),
                "add a set for it to packs/needs.yaml, and a pin with that set to pack.yaml",
            )
        release = max(out, key=Version)
        name, sha256 = pins.choose(out[release].files)
        return need.model_copy(update={"release": release, "artifacts": {name: sha256}})

    def _day(self) -> datetime.date | None:
        """The day on which the release under test came out; None for a commit or where nothing says it."""
        origin = self.tree.origin
        if origin.kind != "release" or origin.release is None:
            return None
        published = self._published(self.pack.upstream.distribution).get(origin.release)
        return published.day if published else None

    def _published(self, distribution: str) -> dict[str, index.Published]:
        """What the index has of a distribution; nothing where it does not answer."""
        try:
            return index.releases(distribution)
        except CannotTestHere:
            return {}


def _allowed(release: str, wanted: SpecifierSet) -> bool:
    try:
        return wanted.contains(Version(release))
    except InvalidVersion:
        return False


def _plain(name: str) -> str:
    return str(canonicalize_name(name))
