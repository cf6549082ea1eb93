"""The commands that a text prints: a reader in an empty folder can run them as they stand, first to last."""

from __future__ import annotations

from collections.abc import Iterator

from reproducers.probe.api import SOURCES
from reproducers.record.schema import Pack, Pin
from reproducers.upstream import pins

WORDS = {"cpu": ("no GPU needed", ""), "cuda": ("on a GPU", " --lane cuda")}


def checkouts(pack: Pack, pin: Pin) -> list[str]:
    """The commands that get, into this folder, what pip cannot install of what the pin needs; [] where it can."""
    return [command for _, _, command in _folders(pack, pin)]


def runs(pack: Pack, pin: Pin) -> list[tuple[str, str]]:
    """(what it needs, command) of each lane, the CPU's first, on the folders that ``checkouts`` makes."""
    folders = "".join(f" {option} {folder}" for option, folder, _ in _folders(pack, pin))
    return [(need, f"python {pack.id}.py{folders}{lane}") for name, (need, lane) in WORDS.items() if name in pack.lanes]


def _folders(pack: Pack, pin: Pin) -> Iterator[tuple[str, str, str]]:
    """(option, folder, the command that makes it) of the tree under test and of each need, where it is a checkout."""
    upstream = pack.upstream
    if not pin.release:
        name = upstream.repo.partition("/")[2]
        root = "" if upstream.source_root == "." else f"/{upstream.source_root}"
        clone = f"git clone https://github.com/{upstream.repo} {name}"
        yield "--tree", name + root, f"{clone} && git -C {name} checkout {pin.sha}"
    elif upstream.package in SOURCES:
        yield "--tree", *_named(upstream.package)
    for need in pins.needs_of(pack, pin):
        if (package := need.distribution.replace("-", "_")) in SOURCES:
            yield "--needs", *_named(package)


def _named(package: str) -> tuple[str, str]:
    """(folder, command) of a package of SOURCES: DIR there is a folder of its own here."""
    folder = package.partition("_")[0]
    return folder, SOURCES[package].replace(" DIR", f" {folder}")
