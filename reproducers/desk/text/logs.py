"""What a text shows of a receipt's log: the file that is attached, and the lines of it that are folded in."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from patchlane.base.wording import collapsed
from reproducers.kept import archive

TAIL, FRAMES = 16, 8  # lines that are folded in, and of these the last ones of a traceback
# Lines that tell a reader nothing: records, a compiler's progress, files of the machine, warnings, digests.
NOISE = re.compile(
    r"^\[verdict\]|^\[[\w ]+\] \{|\[TileLang:|Found kernel in memory cache|<\w+>/|Warning:|warnings\.warn|bit for bit$"
)
TRACEBACK = re.compile(
    r"^\[pristine\] Traceback \(most recent call last\):\n(?:\[pristine\]  .*\n)*\[pristine\] .*$", re.M
)
TREE = re.compile(r"(?m)^\[pristine\] |<store>/\w+/\w+/")  # prefixes of a line and of upstream's files
ARM = re.compile(r"^\[[\w ]+\] (?=.)")
FAILED = re.compile(r"^\[ *(?:bug|different)\] (.*)")


def attached(path: Path) -> bytes:
    """A kept log without its first entry and the JSON that repeats the checks; what comes often is counted."""
    return _attached(archive.data(path))


@functools.lru_cache(maxsize=64)
def _attached(log: bytes) -> bytes:
    kept: dict[str, list[str]] = {}
    for line in log.decode().splitlines():
        if not line.startswith("[run] ") and '] {"checks"' not in line[:40]:
            arm = ARM.match(line)
            kept.setdefault(arm[0] if arm else "", []).append(line[len(arm[0]) if arm else 0 :])
    return "".join(f"{arm}{line}\n" for arm, lines in kept.items() for line in collapsed(lines)).encode()


def tracebacks(log: str) -> list[str]:
    """Every traceback of the unpatched code."""
    return [TREE.sub("", block) for block in TRACEBACK.findall(log)]


def failing(log: str, unmeasured: set[str]) -> str:
    """What failed without the patch: the last lines of the first traceback, then checks; not those ``unmeasured``."""
    trace = [line for block in tracebacks(log)[:1] for line in block.splitlines() if not NOISE.search(line)][-FRAMES:]
    lines = [TREE.sub("", line) for line in log.splitlines() if line.startswith("[pristine] ")]
    checks = [line for line in lines if (told := FAILED.match(line)) and not told[1].startswith(tuple(unmeasured))]
    rest = [line for line in lines if not NOISE.search(line)][-TAIL:] if not trace and not checks else []
    return "\n".join([*trace, *checks[: TAIL - len(trace)], *rest])
