"""Which receipts are superseded, and their way into the archive of their folder.

The newest of each pin, lane and arm stays open, as do all that contradict what their pack claims, that are signed,
that a text of the checkout names, or by which the manifest judges; of mutation scores the newest of a lane.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from patchlane.base.clock import today
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import bytes_of
from patchlane.base.wording import count
from reproducers.evidence import receipts, shelf
from reproducers.evidence.verification import refuse, verify_all
from reproducers.kept import archive
from reproducers.kept.archive import Member
from reproducers.record import mutation
from reproducers.record.schema import ROOT, Pack, load_named, load_packs
from reproducers.trial.experiment import Request, expected

STEM = re.compile(r"(?:mutation_)?\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}")
TEXTS = ("README.md", "docs", "packs", "templates", "model", "reproducers", "ci")
WRITTEN = (".md", ".yaml", ".json", ".j2", ".py", ".patch", "")  # suffixes of files that may name a receipt


def cited(root: Path = ROOT) -> set[str]:
    """The stems of the records that the checkout's texts name; the manifest names all and does not count."""
    places = [path for name in TEXTS for path in (root / name, *(root / name).rglob("*"))]
    texts = (path for path in places if path.is_file() and path.suffix in WRITTEN)
    return {found for path in texts for found in STEM.findall(bytes_of(path).decode("utf-8", "replace"))}


def superseded(pack: Pack, root: Path, before: datetime.date, named: set[str]) -> list[Path]:
    """A pack's open records that may go, by name: of ``before`` or earlier, and not one of those that stay; and what a
    kill left open though the archive holds it.

    ``named``: stems that ``cited`` found. Raises PatchlaneError if a record does not verify.
    """
    folder = root / f"{pack.number:02d}"
    stay = {*_held(pack, root, folder), *(folder / f"{stem}.json" for stem in named)}
    records = [*shelf.chain(folder), *mutation.records(folder)]
    held = {*archive.names(folder)}
    return [p for p in records if p.is_file() and (p.name in held or (p not in stay and _day(p) <= before))]


def _held(pack: Pack, root: Path, folder: Path) -> Iterator[Path]:
    """The records that stay open whatever their age."""
    newest: dict[tuple[str, ...], Path] = {}
    for path in shelf.chain(folder):
        body = receipts.statement_of(path)
        details = body.details
        if pin := pack.pin_name(details.at):
            newest[pin, details.lane, details.arm] = path
        claimed = expected(pack, Request(at=details.at, lane=details.lane, arm=details.arm))
        if details.verdict not in claimed or shelf.signature(path).is_file():
            yield path
    for path in mutation.records(folder):
        score = mutation.read(path)
        newest["mutation", score.subject.lane, str(score.whole and score.of(pack))] = path
    yield from newest.values()
    for pin in pack.pins:
        yield from receipts.newest_of(pack, root, pin).values()


def _day(path: Path) -> datetime.date:
    """The day in a record's name."""
    match = shelf.WHEN.match(path.name)
    assert match, "chain and records give well-named ones"
    return datetime.datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").date()


def archived(names: list[str], days: int, dry_run: bool = False) -> Iterator[str]:
    """Move what is superseded since ``days`` days, of the packs named or of all; a line a pack, and one of all.

    ``dry_run`` names each record that would go, and changes nothing. PatchlaneError where a receipt does not verify.
    """
    chosen, total = load_named(names) if names else load_packs(), 0
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "manifest.lock"):
        for folder in () if dry_run else sorted(shelf.COMMITTED.glob(shelf.FOLDERS)):
            archive.mend(folder)
        refuse(verify_all(shelf.COMMITTED))
        named, before = cited(), today() - datetime.timedelta(days=days)
        for pack in chosen:
            folder = shelf.COMMITTED / f"{pack.number:02d}"
            paths = superseded(pack, shelf.COMMITTED, before, named)
            freed = sum(map(size, paths)) if dry_run else move(folder, paths)
            total += len(paths)
            yield from (f"{folder.name}/{path.name}" for path in paths if dry_run)
            if paths:
                yield f"{pack.id}: {count(len(paths), 'record')} of {freed:,} bytes"
    done = "would go" if dry_run else "in archives; python -m reproducers.manifest refresh --no-import names them"
    yield f"{count(total, 'record')} {done}"


def move(folder: Path, paths: list[Path]) -> int:
    """Move records into the archive of their folder; the number of bytes that lie there no more.

    Each goes only when the archive on the disk gives its bytes and those of its log, so that a kill loses nothing and
    the next call ends what it left. Raises PatchlaneError where the host has no room.
    """
    freed = sum(map(size, paths))
    archive.add(folder, [(_member(path), {file.name: bytes_of(file) for file in _files(path)}) for path in paths])
    for file in (file for path in paths for file in _files(path)):
        if archive.held(file) != bytes_of(file):
            raise PatchlaneError(f"{file} is not what its archive holds", "python -m reproducers.receipts verify")
        file.unlink()
    return freed


def size(path: Path) -> int:
    """Bytes of a record and its log, as far as they lie open."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> list[Path]:
    """A record and its log, where this lies open too."""
    return [file for file in (path.with_suffix(".log"), path) if file.is_file()]


def _member(path: Path) -> Member:
    if path.name.startswith(mutation.PREFIX):
        score = mutation.read(path)
        return Member(
            name=path.name, sha256=archive.sha256(path), log_sha256=score.log_sha256, verdict=None, previous=None
        )
    details = receipts.read(path)
    return Member(
        name=path.name,
        sha256=archive.sha256(path),
        log_sha256=details.log_sha256,
        verdict=details.verdict.value,
        previous=details.previous,
    )
