"""Which requirements hold together: the sets of lines that environments with other markers give."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import NamedTuple

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from patchlane.listed.reading import Required

Environment = dict[str, str]
OPEN = re.compile(
    r"\bextras?\b|\bdependency_groups\b|\bplatform_(release|version)\b"
)  # what no environment below settles
# of these the environments below have some values only: a marker that holds in none of them may hold elsewhere
UNSURE = re.compile(r"python_full_version|platform_machine|implementation|os_name")
SYSTEMS = (
    ("posix", "linux", "Linux", ("x86_64", "aarch64")),
    ("posix", "darwin", "Darwin", ("x86_64", "arm64")),
    ("nt", "win32", "Windows", ("AMD64", "ARM64")),
)


def _environments() -> list[Environment]:
    """Python 3.8 to 3.15, first and late bug-fix releases, on the systems that wheels are made for."""
    return [
        {
            "os_name": name,
            "sys_platform": platform,
            "platform_system": system,
            "platform_machine": machine,
            "platform_python_implementation": implementation,
            "implementation_name": implementation.lower(),
            "python_version": f"3.{minor}",
            "python_full_version": f"3.{minor}.{micro}",
            "implementation_version": f"3.{minor}.{micro}",
            "extra": "",
        }
        for name, platform, system, machines in SYSTEMS
        for machine in machines
        for minor in range(8, 16)
        for micro in (0, 19)
        for implementation in ("CPython", "PyPy")
    ]


ENVIRONMENTS = _environments()


class Choice(NamedTuple):
    """Lines that hold together, and an environment in which they do, as its markers say it."""

    required: tuple[Required, ...]

    @property
    def where(self) -> str:
        return " and ".join(dict.fromkeys(each.marker for each in self.required if each.marker))


def choices(required: list[Required]) -> list[Choice]:
    """The different sets of lines that hold in some environment, those without a requirement left out."""
    never = {
        each.marker for each in required if each.marker and UNSURE.search(each.marker) and not _somewhere(each.marker)
    }
    required = [replace(each, marker="") if each.marker in never else each for each in required]
    found = dict[tuple[Required, ...], None]()
    for number in range(len(ENVIRONMENTS)):
        live = tuple(each for each in required if holds(each.marker, number))
        if any(not each.constraint for each in live):
            found[live] = None
    return [Choice(live) for live in found]


def _somewhere(marker: str) -> bool:
    return any(holds(marker, number) for number in range(len(ENVIRONMENTS)))


@functools.cache
def holds(marker: str, number: int) -> bool:
    """Whether a marker holds in an environment; one that no environment settles, or that is none, may hold in all."""
    if not marker or OPEN.search(marker):
        return True
    try:
        return Marker(marker).evaluate(ENVIRONMENTS[number])
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, InvalidVersion, KeyError):
        return True


def refusing(version: str, required: tuple[Required, ...]) -> Required | None:
    """A line of these that does not allow the version."""
    for each in required:
        try:
            if each.spec and each.version is None and version not in SpecifierSet(each.spec, prereleases=True):
                return each
        except (InvalidSpecifier, InvalidVersion):  # conda's and Poetry's, which are other than pip's
            continue
    return None
