"""What a clone's history says of a conflict: the commit that changed a line, and where a file went."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from reproducers.upstream.git import git

ABOUT = "--format=%h %cs %s"
LETTERS = 3  # a line with fewer letters and digits stands in a file too often to tell a commit


@lru_cache(maxsize=1024)
def changed(clone: Path, base: str, target: str, path: str, expected: str, there: str) -> str:
    """The newest commit of ``target`` since ``base`` that took the expected line out of a file, or brought the one that
    is there: SHA, day and subject. A commit that only ``base`` has is told as such. "" where git finds none."""
    for text in (expected, there):
        if sum(map(str.isalnum, text)) < LETTERS:
            continue
        for span, only in ((f"{base}..{target}", ""), (f"{target}..{base}", "only the base has ")):
            done = git("log", "-1", ABOUT, f"-S{text}", span, "--", path, cwd=clone)
            if done.returncode == 0 and (row := done.stdout.strip()):
                return only + row
    return ""


@lru_cache(maxsize=256)
def moved(clone: Path, base: str, target: str, path: str) -> tuple[str, str | None]:
    """(the commit that took a file away, "" where there is none; the path that it has since, None for a deletion)."""
    done = git("log", "-1", ABOUT, "--diff-filter=D", "--no-renames", f"{base}..{target}", "--", path, cwd=clone)
    row = done.stdout.strip()
    if not row:
        return "", None
    shown = git("show", "--format=", "--name-status", "-M", "-l0", "-z", row.split()[0], cwd=clone).stdout.split("\0")
    pairs = zip(shown, shown[1:], shown[2:], strict=False)
    return row, next((new for word, old, new in pairs if word.startswith("R") and old == path), None)


def title(clone: Path, sha: str) -> str:
    """SHA, day and subject of a commit."""
    return git("show", "-s", ABOUT, sha, cwd=clone).stdout.strip()
