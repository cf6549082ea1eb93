"""The files of a new pack: known values are filled in, and ``<write ...>`` marks the parts that a person writes.

The files are ``templates/pack/*.in``; the rule ``pack-unwritten`` of the lint lists the marks that are left.
"""

from __future__ import annotations

import datetime
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml
from pydantic import ValidationError

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from reproducers.desk.start import known as known_of
from reproducers.desk.start import releases
from reproducers.record.schema import ROOT, Pack, Upstream, load_each, load_releases

TEMPLATES = ROOT / "templates" / "pack"
PAGE = "docs/writing-a-pack.md"
CATEGORIES = {"memory": "memory", "refactor": "legality refactor"}  # of these kinds; other kinds leave it to the writer
KINDS = ("bug", "memory", "performance", "refactor", "report", "guard")
UNFIXED = ("report", "guard")  # kinds without a patch
PYTHON = ">=3.11"  # where the release's metadata names none
HARMS = {"memory": "memory", "performance": "slow"}  # of these kinds; other kinds leave it to the writer
HARM = """\
harm: {}  # <write the harm that fits, of those in docs/glossary.md>
effect: <write what it does to a run in one line, with a figure that was measured>
"""
FIX = "{% block fix %}<write what the patch does>{% endblock %}"
FIX_PATCH = "fix.patch"
REVIEW_DAYS = 90
UNKNOWN_LICENCE = "<write the upstream's licence>"


@dataclass(frozen=True)
class Theirs:
    """Another's patch with which a pack begins: the values of its short header, and its diff."""

    subject: str
    origin: str
    status: str
    diff: str


@dataclass(frozen=True)
class Wanted:
    """The subject of a new pack. ``distribution`` and ``package`` default to those of other packs of ``repo``, or to
    its name; ``number`` to the next free number. ``fixed``: the first release without the bug, which a guard needs.
    ``theirs``: the patch to begin with."""

    slug: str
    repo: str
    release: str
    number: int | None = None
    distribution: str | None = None
    package: str | None = None
    kind: str = "bug"
    fixed: str | None = None
    theirs: Theirs | None = None


def create(wanted: Wanted, packs: Path, today: datetime.date) -> list[Path]:
    """Write the pack's folder under ``packs``, whole or not at all; returns its files.

    Raises PatchlaneError for a slug or number in use, an impossible name, or a folder that cannot be written;
    CannotTestHere if the package index is needed and cannot be reached; NoSuchRelease if it lacks the release.
    """
    number = _number(wanted, packs)
    known = load_each(packs)[0]
    upstream = _upstream(wanted, packs, known)
    pins = {"live": wanted.release} | ({"fixed": wanted.fixed} if wanted.fixed else {})
    there = load_releases(packs).get(upstream.distribution, {})
    new = {
        (upstream.distribution, release): releases.published(upstream.distribution, release, upstream.repo)
        for release in dict.fromkeys(pins.values())
        if release not in there
    }
    live = there.get(wanted.release) or new[upstream.distribution, wanted.release]
    values = {
        "number": str(number),
        "padded": f"{number:02d}",
        "kind": wanted.kind,
        "category": CATEGORIES.get(wanted.kind, "kernel numerics and dimensions"),
        "harm": "" if wanted.kind == "refactor" else HARM.format(HARMS.get(wanted.kind, "wrong numbers")),
        "upstream": _yaml("upstream", upstream.model_dump(exclude_defaults=True)),
        "pins": _yaml("pins", {name: {"release": release} for name, release in pins.items()}),
        "python": upstream.python or live.python or PYTHON,
        "distribution": upstream.distribution,
        "package": upstream.package,
        "licence": upstream.licence,
        "today": str(today),
        "review": str(today + datetime.timedelta(days=REVIEW_DAYS)),
        "page": PAGE,
        "fix": FIX if wanted.kind not in UNFIXED else "",
    }
    folder, names = packs / f"{number:02d}_{wanted.slug}", _files(wanted.kind)
    with (
        disk.writing(packs, "make room there, or take a checkout that you may write"),
        tempfile.TemporaryDirectory(dir=packs, prefix=".new-") as scratch,
    ):
        made = Path(scratch) / folder.name
        for name in names:
            text = Template((TEMPLATES / f"{name}.in").read_text(encoding="utf-8")).substitute(values)
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            if name == FIX_PATCH and wanted.theirs:
                text = _fix(wanted.theirs, values)
            (made / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        releases.add(packs, new)
        made.rename(folder)
    known_of.take(packs, number, wanted.slug)
    return [folder / name for name in names]


def _fix(theirs: Theirs, values: dict[str, str]) -> str:
    """Another's patch under the short header of a pack."""
    fields = {
        "Subject": theirs.subject,
        "Pack": values["padded"],
        "Origin": theirs.origin,
        "Upstream-Status": theirs.status,
        "Licence": values["licence"],
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items()) + "\n" + theirs.diff


def _files(kind: str) -> list[str]:
    """The files of a pack of that kind, by their paths in its folder; a report or a guard has no fix."""
    names = sorted(path.relative_to(TEMPLATES).as_posix().removesuffix(".in") for path in TEMPLATES.rglob("*.in"))
    return [name for name in names if kind not in UNFIXED or not name.endswith(".patch")]


def _number(wanted: Wanted, packs: Path) -> int:
    """The new pack's number; PatchlaneError if slug or kind is invalid, or slug or number is in use."""
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", wanted.slug):
        raise PatchlaneError(f"slug {wanted.slug!r}: not words of [a-z0-9] joined by _", "as in mimo_2d_loads")
    if wanted.kind not in KINDS:
        raise PatchlaneError(f"--kind {wanted.kind}", f"--kind {', '.join(KINDS)}")
    if wanted.theirs and wanted.kind in UNFIXED:
        raise PatchlaneError(f"--kind {wanted.kind} has no patch to begin with", "--kind bug")
    if wanted.kind == "guard" and wanted.fixed is None:
        raise PatchlaneError("a guard compares a release with the bug and one without it", "--fixed RELEASE")
    used = known_of.numbers(packs)
    number = wanted.number or 1 + max(used, default=0)
    there = next(packs.glob(f"[0-9]*_{wanted.slug}"), None)
    if there is not None or number in used:
        what = f"{there.name} is there already" if there else f"number {number} is taken by {used[number]}"
        raise PatchlaneError(f"{packs.name}: {what}", "take another slug, or leave --number out")
    return number


def _upstream(wanted: Wanted, folder: Path, packs: list[Pack]) -> Upstream:
    """The upstream as other packs of the repository have it, else made of the repository's name."""
    known = next((p.upstream for p in packs if p.upstream.repo.lower() == wanted.repo.lower()), None)
    name = wanted.distribution or (known.distribution if known else known_of.distribution(wanted.repo, folder, packs))
    given = {"distribution": wanted.distribution, "package": wanted.package}
    if known is None or name != known.distribution:
        given["package"] = wanted.package or name.replace("-", "_")
    base = known.model_dump() if known else {"repo": wanted.repo, "distribution": name, "licence": UNKNOWN_LICENCE}
    if not all(part.isidentifier() for part in (given["package"] or "ok").split(".")):
        raise PatchlaneError(f"{given['package']!r} cannot be imported", "--package NAME, as import has it")
    try:
        return Upstream.model_validate(base | {key: value for key, value in given.items() if value})
    except ValidationError as error:
        raise PatchlaneError(f"--upstream {wanted.repo}: not OWNER/NAME", "--upstream state-spaces/mamba") from error


def _yaml(name: str, value: object) -> str:
    return yaml.safe_dump({name: value}, sort_keys=False, width=1000).rstrip()
