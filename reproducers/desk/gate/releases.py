"""Upstream's newest release as packs and receipts name it: no filing verb asks the index."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from reproducers.record.schema import Pack, load_each


def known(pack: Pack, tried: Iterable[str]) -> str | None:
    """The newest release among those that packs of the distribution pin and those that receipts tried."""
    others = load_each(pack.folder.parent)[0]
    same = [other for other in others if other.upstream.distribution == pack.upstream.distribution]
    return _newest([*tried, *(pin.release for other in same for pin in other.pins.values() if pin.release)])


def _newest(names: Iterable[str]) -> str | None:
    versions = {version: name for name in names if (version := _version(name)) and not version.is_prerelease}
    return versions[max(versions)] if versions else None


def _version(name: str) -> Version | None:
    try:
        return Version(name)
    except InvalidVersion:
        return None
