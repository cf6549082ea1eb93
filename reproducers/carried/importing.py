"""Patches that were given as the entries of a queue: what they change, in which order, and what is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from patchlane.base.errors import PatchlaneError
from patchlane.base.wording import printable
from reproducers.carried.entry import Base, Carried, Upstream, slug
from reproducers.carried.patches import mails
from reproducers.carried.patches.reader import parse
from reproducers.record.schema import ROOT, load_packs
from reproducers.upstream.git import git
from reproducers.upstream.pins import SHA

TAGS = (
    "",
    "core_v",
    "v",
)  # how upstreams write a release's tag; Megatron-LM has a v0.11.0 of its own beside core_v0.11.0


class Subject(NamedTuple):
    """What a queue's patches change, and the tree that they were made for."""

    upstream: Upstream
    base: Base


def subject(repo: str, base: str, clone: Path | None, distribution: str | None, source_root: str | None) -> Subject:
    """The upstream as packs of the repository know it, else by its name; the base as a release and full SHA.

    PatchlaneError for a base that is neither a release nor a full SHA, nor in the clone.
    """
    known = next(
        (pack.upstream for pack in load_packs(ROOT / "packs") if pack.upstream.repo.lower() == repo.lower()), None
    )
    name = distribution or (known.distribution if known else repo.rpartition("/")[2].lower())
    root = source_root or (known.source_root if known else ".")
    try:
        upstream = Upstream(repo=repo, distribution=name, source_root=root)
    except ValidationError as error:
        raise PatchlaneError(
            f"--upstream {repo} --source-root {root}: no repository and folder", "--upstream a/b"
        ) from error
    return Subject(upstream, _base(base, clone))


def _base(base: str, clone: Path | None) -> Base:
    release = re.sub(r"^(core_)?v(?=\d)", "", base)
    named = release if is_release(release) else None
    sha = (found(clone, base) if clone else None) or (base if SHA.fullmatch(base) else None)
    if clone and sha is None:
        raise PatchlaneError(f"{clone} has no {base}", f"git -C {clone} fetch, or --base a SHA that git log shows")
    if not named and not sha:
        raise PatchlaneError(
            f"--base {base}: no release and no full SHA", "--clone DIR, which has it, or all 40 digits"
        )
    return Base(release=named, sha=sha)


def is_release(text: str) -> bool:
    """Whether a text is a version and no beginning of a SHA."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return not re.fullmatch(r"[0-9a-f]{7,40}", text)


def found(clone: Path, name: str) -> str | None:
    """The full SHA of a release's tag, a commit, tag or branch of a clone; None where it has none of that name."""
    if not clone.is_dir() or name.startswith("-"):
        return None
    release = re.sub(r"^(core_)?v(?=\d)", "", name)
    for form in (f"refs/tags/{name}", *(f"refs/tags/{tag}{release}" for tag in TAGS if is_release(release)), name):
        done = git("rev-parse", "--verify", "--quiet", f"{form}^{{commit}}", cwd=clone)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def entries(
    given: list[mails.Given], about: Subject, origin: str, strip: int | None, by_file: bool
) -> tuple[list[tuple[mails.Given, Carried]], list[str]]:
    """(the patches with their records in order, a line for each that holds no diff).

    PatchlaneError with file and line where one is refused, and where none is a patch.
    """
    taken, left_out = list[tuple[mails.Given, Carried]](), list[str]()
    for one in given:
        one = one if one.strip is not None else one._replace(strip=strip)
        if not parse(mails.body(one.data), one.name, one.strip).files:
            left_out.append(f"{one.name}:1: no diff in it (a cover letter, or an empty commit)")
            continue
        for part in mails.parts(one) if by_file else [one]:
            diff = parse(mails.body(part.data), part.name, part.strip)
            said = mails.said(part, diff)
            number = len(taken) + 1
            words = f"{said.subject} {Path(part.part).stem}" if part.part else said.subject
            record = Carried(
                upstream=about.upstream,
                base=about.base,
                origin=origin,
                subject=said.subject,
                author=said.author,
                upstream_status=said.status,
                source=printable(part.name),
                part=printable(part.part) if part.part else None,
                strip=part.strip,
                folder=Path(f"{number:02d}_{slug(words)}"),
            )
            taken.append((part, record))
    if not taken:
        raise PatchlaneError("\n".join(left_out) or "no patch", "git format-patch, or git diff > FILE.patch")
    return taken, left_out
