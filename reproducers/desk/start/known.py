"""What is known of a new pack's number, distribution and release before anybody writes it down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name

from patchlane.base import clock, disk
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.record.schema import Pack, load_needs, read_yaml
from reproducers.upstream.git import git

HOST = "https://github.com"
NUMBERS = "numbers.yaml"  # in the folder of packs: {number: slug}, packs that only history has among them
HEAD = (
    "# Every number that a pack has or had, here or in history: none is given twice."
    " `python -m reproducers.new` adds its own.\n"
)


def numbers(packs: Path) -> dict[int, str]:
    """{number: slug} of every pack that there is or was: the committed list, the folders, and receipts of any pack.

    The list needs no history, so a shallow clone or an archive gives no number twice. Raises PatchlaneError if it is
    damaged.
    """
    path = packs / NUMBERS
    listed = (read_yaml(path)[1] or {}) if path.is_file() else {}
    if not isinstance(listed, dict) or not all(isinstance(n, int) and isinstance(s, str) for n, s in listed.items()):
        raise PatchlaneError(f"{path}: not {{number: slug}}", f"git checkout HEAD -- {packs.name}/{NUMBERS}")
    proved = {int(path.name): "a pack with receipts" for path in packs.parent.glob("receipts/[0-9]*") if path.is_dir()}
    there = [match for path in packs.glob("*") if (match := re.fullmatch(r"(\d+)_(\w+)", path.name))]
    return proved | listed | {int(match[1]): match[2] for match in there}


def take(packs: Path, number: int, slug: str) -> None:
    """Write a number into the list, which is made where there is none."""
    rows = "".join(f"{known}: {name}\n" for known, name in sorted((numbers(packs) | {number: slug}).items()))
    with disk.writing(packs, "make room there, or take a checkout that you may write"):
        write_atomic(packs / NUMBERS, (HEAD + rows).encode())


def distribution(repo: str, packs: Path, known: Iterable[Pack]) -> str:
    """The distribution of a repository: that of other packs, or of a need with its name, else the repository's name."""
    owner, _, name = repo.lower().rpartition("/")
    needed = [need.distribution for needs in load_needs(packs).values() for need in needs]
    names = {_plain(one): one for one in [*needed, *(pack.upstream.distribution for pack in known)]}
    return names.get(_plain(name)) or names.get(_plain(owner + name)) or name


def _plain(name: str) -> str:
    return canonicalize_name(name).replace("-", "")


def tagged(repo: str, release: str) -> str | None:
    """The full SHA that a repository has tagged with a release; None where it has none or does not answer."""
    forms = [f"refs/tags/{form}{release}" for form in ("", "v", "core_v")]
    words = [*forms, *(f"{form}^{{}}" for form in forms)]
    try:
        done = git(
            "ls-remote", "-q", "--end-of-options", f"{HOST}/{repo}", *words, network=True, within_s=clock.ANSWER_S
        )
    except CannotTestHere:
        return None
    rows = [line.split("\t") for line in done.stdout.splitlines() if re.match(r"[0-9a-f]{40}\trefs/tags/", line)]
    # of an annotated tag the line that ends in ^{} has the commit
    return next(iter([sha for sha, name in rows if name.endswith("^{}")] or [sha for sha, _ in rows]), None)


def asking(repo: str, release: str) -> str:
    """The command by which a person finds the SHA of a release."""
    return f"git ls-remote --tags {HOST}/{repo} '*{release}*'"
