"""An audit: which packs are asked of which environment, and what is said of the answers."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from patchlane.base import place
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.judged import advice, answers, judgement
from patchlane.judged.answers import Answer
from patchlane.known import data
from patchlane.known.index import HARMS, Known
from patchlane.listed.reading import Reading
from patchlane.present import environment
from patchlane.present.environment import Environment
from patchlane.shown import report, table
from patchlane.verb import applying

Measure = Callable[[list[Answer], Environment], list[Answer]]


@dataclass(frozen=True)
class Request:
    """What the command line asks for. ``data``: another index, a file or an address; ``since``: a date, of the packs
    that came in from then on; ``release``: ``NAME==VERSION``; ``fail_on``: harms, separated by commas.
    ``apply``, ``dry_run``, ``revert``: patches go into the environment, would, or are taken out again."""

    packs: tuple[str, ...] = ()
    python: Path | None = None
    requirements: Path | None = None
    release: str | None = None
    ignore: tuple[str, ...] = ()
    since: str | None = None
    fail_on: str | None = None
    data: str | None = None
    as_json: bool = False
    sarif: Path | None = None
    apply: bool = False
    dry_run: bool = False
    revert: bool = False


def answered(request: Request, measure: Measure | None = None) -> Exit:
    """Print the answers, write the SARIF log, and give the exit code. ``measure``: what decides the unknown ones.

    Raises PatchlaneError for options that contradict each other and for names that are none.
    """
    _refuse(request, measure is not None)
    fails = harms(request.fail_on)
    known = chosen(data.known(request.data), request)
    lines = list[str]()
    if request.apply:
        lines = applying.apply(request.python, known, request.dry_run)
    elif request.revert:
        lines = applying.revert(request.python, known)
    if request.release:
        known, seen = _released(known, request.release)
        judged, mends = judgement.audit(known, seen), list[answers.Advice]()
    else:
        seen = _environment(request, known)
        judged = judgement.audit(known, seen)
        judged, mends = advice.advised(measure(judged, seen) if measure else judged, known, seen)
    code = answers.exit_code(judged, seen.unread, fails)
    if request.sarif:
        from patchlane.shown.sarif import write

        write(request.sarif, judged, known, seen.unread)
    if request.as_json:
        print(report.as_json(judged, mends, seen, code))
    else:
        shown = table.text(judged, seen) if request.release else report.text(judged, mends, seen)
        print("\n".join([*lines, shown]))
    return code


def _refuse(request: Request, run: bool) -> None:
    """PatchlaneError for options that contradict each other."""
    given = [name for name in ("python", "requirements", "release") if getattr(request, name)]
    doing = [name for name in ("apply", "revert") if getattr(request, name)] + (["run"] if run else [])
    if len(given) > 1 or len(doing) > 1 or (doing and {*given} - {"python"}):
        clash = doing if len(doing) > 1 else given if len(given) > 1 else [*given, *doing]
        said = " and ".join(f"--{name}" for name in clash)
        raise PatchlaneError(f"{said} do not go together", "leave one of them out")
    if request.dry_run and not request.apply:
        raise PatchlaneError("--dry-run goes with --apply", f"{place.AUDIT} --apply --dry-run")
    if request.sarif == Path("-"):
        raise PatchlaneError("--sarif -: not a file", "--sarif audit.sarif")


def harms(text: str | None) -> tuple[str, ...]:
    """The harms that ``--fail-on`` names. PatchlaneError for a word that is none."""
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    if strange := [word for word in words if word not in HARMS]:
        raise PatchlaneError(f"--fail-on: {strange[0]!r} is no harm", f"one or more of {','.join(HARMS)}")
    return words


def chosen(known: Known, request: Request) -> Known:
    """The packs that are asked for. PatchlaneError for a name that no pack of the index has, and for no date."""
    try:
        since = str(datetime.date.fromisoformat(request.since)) if request.since else ""
    except ValueError as error:
        raise PatchlaneError(f"--since {request.since}: not a date", "--since 2026-12-31") from error
    left_out = {named(known, name) for name in request.ignore}
    names = [named(known, name) for name in request.packs] or [*known.packs]
    return known.only([name for name in names if name not in left_out and known.packs[name].added >= since])


def named(known: Known, name: str) -> str:
    """The id of the pack ``pack05``, ``05`` or ``5``. PatchlaneError where the index has none of that number."""
    match = re.fullmatch(r"(?:pack)?0*(\d+)", name)
    if match is None:
        raise PatchlaneError(f"no pack {name!r}", f"pack09, say; {place.AUDIT} without a name judges all")
    if (pack := f"pack{int(match[1]):02d}") not in known.packs:
        said = f"{pack}: the index has no such bug: no such pack, or none that could be mended"
        raise PatchlaneError(said, f"leave it out; the index has {' '.join(known.packs) or 'no pack at all'}")
    return pack


def _environment(request: Request, known: Known) -> Environment:
    if request.requirements:
        return environment.of_requirements(request.requirements, known.index.repositories)
    return environment.of_python(request.python, known)


def _released(known: Known, text: str) -> tuple[Known, Environment]:
    """(the packs of the distribution in ``NAME==VERSION``, an environment that has this release and nothing else)."""
    match = re.fullmatch(r"\s*([\w.-]+)\s*==\s*([\w.!+-]+)\s*", text)
    distributions = sorted({pack.distribution for pack in known.packs.values()})
    if match is None:
        raise PatchlaneError(f"--release {text}: not NAME==VERSION", f"--release {(distributions or ['NAME'])[0]}==1.0")
    reading = Reading(Path("--release"))
    reading.require(1, match[1], version=match[2])
    wanted = reading.required[0].name
    mine = [name for name, pack in known.packs.items() if pack.distribution == wanted]
    if not mine:
        said = f"--release {text}: no pack is of {match[1]}, of those that are asked for"
        raise PatchlaneError(said, f"one of {', '.join(distributions)}, or other packs and another --since")
    seen = environment.of_reading(reading)
    return known.only(mine), Environment(f"{wanted} {match[2]}", "", seen.distributions, reading=reading)
