"""Which releases of a distribution are tried: those named, those that a specifier allows, or all, oldest first."""

from __future__ import annotations

from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from patchlane.base.errors import PatchlaneError
from reproducers.upstream import fitting, index


class Choice(NamedTuple):
    """Releases to try, oldest first, and {release: why it is left out}."""

    taken: list[str]
    left_out: dict[str, str]


def choose(distribution: str, wanted: str | None = None, newest: int | None = None, loadable: bool = True) -> Choice:
    """The releases of a distribution on the index.

    ``wanted``: releases or a specifier, as in ``0.6.4,0.7.0`` or ``>=0.6,<0.9``; None is all but pre-releases and
    withdrawn ones. ``newest``: no more than so many of these, the newest. ``loadable``: with a file for this
    interpreter. PatchlaneError for a release that the index has not, or where none is left.
    """
    published = index.releases(distribution)
    names = [name for name in published if _version(name) is not None]
    allowed, exact = _asked(distribution, names, wanted)
    taken, left_out = list[str](), dict[str, str]()
    for name in names if not exact else [name for name in names if name in allowed]:
        if name not in allowed:
            continue
        version = Version(name)
        if version.is_prerelease and not exact:
            left_out[name] = "a pre-release"
        elif published[name].yanked and not exact:
            left_out[name] = "withdrawn"
        elif loadable and not fitting.has_file(published[name].files):
            left_out[name] = "no file for this interpreter"
        else:
            taken.append(name)
    for name in taken[: -newest or None] if newest is not None else []:
        left_out[name] = f"older than the newest {newest}"
    taken = taken[-newest:] if newest is not None else taken
    if not taken:
        what = f"no release of {distribution} is left to try" + (f" of {wanted}" if wanted else "")
        raise PatchlaneError(what, f"--releases '{names[-1] if names else '>=0'}'")
    return Choice(taken, left_out)


def _asked(distribution: str, names: list[str], wanted: str | None) -> tuple[set[str], bool]:
    """(the releases that ``wanted`` allows, whether it names each of them)."""
    if wanted is None:
        return set(names), False
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    if parts and all(_version(part) is not None for part in parts):
        known = {Version(name): name for name in names}
        unknown = [part for part in parts if Version(part) not in known]
        if unknown:
            newest = ", ".join(names[:-9:-1])
            raise PatchlaneError(
                f"{distribution} has no release {', '.join(unknown)}", f"take some of the newest: {newest}"
            )
        return {known[Version(part)] for part in parts}, True
    try:
        specifier = SpecifierSet(wanted)
    except InvalidSpecifier as error:
        raise PatchlaneError(
            f"--releases {wanted!r} is neither releases nor a specifier", "--releases 0.6.4,0.7.0 or '>=0.6,<0.9'"
        ) from error
    return {name for name in names if specifier.contains(Version(name), prereleases=True)}, False


def _version(name: str) -> Version | None:
    try:
        return Version(name)
    except InvalidVersion:
        return None
