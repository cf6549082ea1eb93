"""What mends the bugs that were found: one release a distribution, and a patch for each bug, tried as it is printed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from patchlane.base import place
from patchlane.base.files import temporary
from patchlane.judged.answers import Advice, Answer
from patchlane.known.index import Known, KnownPack
from patchlane.patches import landing
from patchlane.present.environment import Environment


def advised(answers: list[Answer], known: Known, environment: Environment) -> tuple[list[Answer], list[Advice]]:
    """(the answers with what mends each bug, the release to take of each distribution that has one with fewer bugs).

    ``known`` has the packs of the answers: a release that mends the bugs in question may bring others of them.
    """
    releases = {name: advice for name in _buggy(answers) if (advice := _release(name, answers, known, environment))}
    with temporary() as scratch:
        patcher = Patches(known, scratch)
        mended = [_mended(answer, releases.get(answer.distribution), patcher) for answer in answers]
    return mended, list(releases.values())


def _buggy(answers: Iterable[Answer]) -> list[str]:
    return list(dict.fromkeys(answer.distribution for answer in answers if answer.state == "buggy"))


def _mended(answer: Answer, advice: Advice | None, patcher: Patches) -> Answer:
    if answer.state != "buggy":
        return answer
    release = advice.command if advice and answer.pack not in (*advice.stays, *advice.unknown) else ""
    remedy = patcher.command(answer)
    if not remedy and not release:
        remedy = f"none is known; see {patcher.notes(answer.pack)}"
    return replace(answer, remedy=remedy, release=release)


def _release(name: str, answers: list[Answer], known: Known, environment: Environment) -> Advice | None:
    """The release with the fewest known bugs, then the fewest that nobody measured, then the newest.

    None where what is there has as few, or where more packs are unmeasured in it than bugs are mended.
    """
    mine = [answer for answer in answers if answer.distribution == name]
    now = sum(answer.state == "buggy" for answer in mine)
    open_now = sum(answer.state == "unknown" for answer in mine)
    judged = {answer.pack: known.packs[answer.pack] for answer in mine}
    rows = []
    for release in {release for each in judged.values() for s in ("fixed", "buggy") for release in each.releases(s)}:  # type: ignore[arg-type]
        stays = [pack for pack, each in judged.items() if release in each.releases("buggy")]
        unknown = [p for p, e in judged.items() if release not in (*e.releases("buggy"), *e.releases("fixed"))]
        if len(stays) < now and (len(unknown) <= open_now or len(stays) + len(unknown) < now):
            rows.append((len(stays), len(unknown), _newest_first(release), release, stays, unknown))
    if not rows:
        return None
    _, _, _, release, stays, unknown = min(rows)
    forced = _disagreement(mine, known, environment)
    command = f"pip install {'--force-reinstall --no-deps ' if forced else ''}{name}=={release}"
    if environment.reading:
        command = f"{name}=={release} in {' and '.join(each.place for each in environment.required(name))}"
    return Advice(distribution=name, release=release, command=command, stays=stays, unknown=unknown, reason=forced)


def _newest_first(release: str) -> tuple[int, ...]:
    try:
        version = Version(release)
    except InvalidVersion:
        return (0,)
    return tuple(-part for part in (*version.release, version.post or 0))


def _disagreement(answers: list[Answer], known: Known, environment: Environment) -> str:
    """Why pip might take a release for installed that is not: its metadata and the code are not of one release.

    Only a release that was measured tells this: an unmeasured one may have the code of another.
    """
    installed = environment.distribution(answers[0].distribution)
    if environment.reading or installed is None:
        return ""
    if installed.others:
        return f"it has metadata of {' and of '.join((installed.version, *installed.others))}"
    other = {
        answer.label
        for answer in answers
        if answer.by == "code" and answer.state != "patched" and not same(answer.label, installed.version)
        if any(tree.code and same(tree.release or "", installed.version) for tree in known.packs[answer.pack].trees)
    }
    if other:
        return f"its metadata says {installed.version}, its code is that of {' and '.join(sorted(other))}"
    return ""


def same(release: str, version: str) -> bool:
    try:
        return Version(release) == Version(version)
    except InvalidVersion:
        return release == version


class Patches:
    """Patches tried one after another on a copy of the files that they change, as the printed commands would run.

    ``copies``: by folder of packages, the files as the patches leave them; ``taken``: the packs whose patches went in.
    """

    def __init__(self, known: Known, scratch: Path) -> None:
        self.known, self.scratch = known, scratch
        self.copies, self.taken = dict[Path, Path](), set[str]()

    def notes(self, pack: str) -> str:
        """What a reader opens to know more of a pack."""
        root = place.PACKS if place.CLONE else Path("packs")
        return place.of_clone(str(root / self.known.packs[pack].folder / "notes.md"))

    def command(self, answer: Answer) -> str:
        """The command that mends this bug after those before it; "" where the pack has no patch for this code."""
        if not answer.patch:
            return ""
        pack, patch = self.known.packs[answer.pack], self.known.patch(answer.pack, answer.patch)
        if other := self.known.strange(answer.pack, answer.patch):
            return other
        if not answer.root:
            return f"apply {patch} to what is installed"
        refused = self._refused(Path(answer.root), patch, pack, pack.patches[answer.patch].paths)
        if refused:
            return f"rebase {patch} on this code, on which it does not apply: {refused}"
        self.taken.add(answer.pack)
        return shlex.join(landing.command(Path(answer.root), patch, pack.strip))

    def _refused(self, root: Path, patch: Path, pack: KnownPack, paths: Iterable[str]) -> str:
        """Why the patch does not apply; it is applied to the copy where it does."""
        copy = self.copies.setdefault(root, self.scratch / str(len(self.copies)))
        copy.mkdir(exist_ok=True)
        for path in paths:
            if (root / path).is_file() and not (copy / path).exists():
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / path, copy / path)
        return landing.land(copy, patch, pack.strip, keep=True).refused
