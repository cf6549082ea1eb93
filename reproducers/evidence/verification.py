"""Check receipts against themselves: recompute digests, derive verdicts anew from the records of the arms."""

from __future__ import annotations

import concurrent.futures
import datetime
import gc
import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from patchlane.base.clock import today
from patchlane.base.errors import PatchlaneError, StoreError
from patchlane.base.files import LARGEST
from reproducers.base.verdicts import Verdict
from reproducers.evidence import binding, shelf
from reproducers.host import cores
from reproducers.kept import archive
from reproducers.record import mutation
from reproducers.record.receipt import Details, Statement, faults_of
from reproducers.record.schema import ROOT
from reproducers.trial import keeper
from reproducers.trial.rulings import is_healthy, misjudged, rule, rule_census, rule_guard, rule_pristine, sentinels

SIDE_BY_SIDE = datetime.timedelta(hours=1)  # for so long one checkout of a host may not know of a run in another


class Checked(NamedTuple):
    """One receipt read once: its statement (None if malformed), its digest, and the faults that it shows by itself."""

    body: Statement | None
    sha256: str
    faults: list[str]


class Proof(NamedTuple):
    """What stays of a receipt that was checked: its digest, its predecessor's, its archive's, and its faults."""

    sha256: str
    previous: str | None
    archive: str | None
    faults: list[str]


State = tuple[int, ...]
Tell = Callable[[int, int], None]
HELD = 2000  # statements in memory
FEWEST = 100  # receipts for which other processes are worth their start
_kept: dict[Path, tuple[State, Checked]] = {}
_proofs: dict[Path, tuple[State, Proof]] = {}
_named = set[str]()  # digests of statements that this very code has proved before


def checked(path: Path) -> Checked:
    """The receipt compared with its name, log and observations; read again only if one of its files changed."""
    return _checked(archive.real(path))


def _checked(path: Path) -> Checked:
    now = _state(path)
    if path not in _kept or _kept[path][0] != now:
        while len(_kept) >= HELD:
            del _kept[next(iter(_kept))]
        known = _proofs.get(path)
        _kept[path] = (
            now,
            _read(path, known[1]) if known and known[0] == now else _check(path, path.with_suffix(".log")),
        )
    return _kept[path][1]


def _read(path: Path, known: Proof) -> Checked:
    """A receipt that was proved, in another process perhaps: only its statement is wanted."""
    try:
        return Checked(Statement.of(archive.data(path)), known.sha256, known.faults)
    except (ValueError, StoreError):
        return Checked(None, known.sha256, known.faults)


def _state(path: Path) -> State:
    """What tells a receipt, with its log, that was not touched since."""
    files = [file.stat() for file in (path, path.with_suffix(".log")) if file.is_file()]
    found = tuple(value for s in files for value in (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino))
    return found if len(files) == 2 else (*found, *archive.state(path))


def proof(path: Path) -> Proof:
    """What the check of a receipt gives, without its statement."""
    path = archive.real(path)
    now = _state(path)
    if path not in _proofs or _proofs[path][0] != now:
        _proofs[path] = now, _proof(path)
    return _proofs[path][1]


def _proof(path: Path) -> Proof:
    body, sha256, faults = _checked(path)
    return Proof(sha256, body.details.previous if body else None, body.details.archive if body else None, faults)


def _proofs_of(paths: list[Path]) -> list[tuple[State, Proof]]:
    """What a worker finds; it keeps no statement."""
    proofs = [(_state(path), _proof(path)) for path in paths]
    _kept.clear()
    return proofs


def prove(paths: Collection[Path], tell: Tell) -> None:
    """Check receipts, many of them in as many processes as this one may use cores; ``tell(number so far, of)``."""
    todo = [path for path in map(archive.real, paths) if path not in _proofs]
    workers = cores.usable()
    if len(todo) < FEWEST or workers == 1:
        return
    size = max(1, min(100, len(todo) // (4 * workers)))
    shares = [todo[at : at + size] for at in range(0, len(todo), size)]
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), _die_with, (os.getpid(),)
    )
    try:
        done = 0
        for share, proofs in zip(shares, pool.map(_proofs_of, shares), strict=True):
            _proofs.update(zip(share, proofs, strict=True))
            done += len(share)
            tell(done, len(todo))
    except concurrent.futures.process.BrokenProcessPool:  # the host killed one: what is missing is proved here
        return
    finally:
        pool.shutdown(cancel_futures=True)


def _die_with(parent: int) -> None:
    """Begin a worker: an interrupt is its parent's affair, and it outlives none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper.prctl(keeper.PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.disable()  # statements are trees: what is dropped is freed at once
    if os.getppid() != parent:
        os._exit(1)


def _check(path: Path, log: Path) -> Checked:
    try:
        data, rows = archive.data(path), list[str]()
    except StoreError as error:
        return Checked(None, "", [error.what])
    digest = hashlib.sha256(data).hexdigest()
    if digest[:12] != path.stem.rsplit("_", 1)[-1]:
        rows.append("the statement was altered: its sha256 does not start with the digest in its name")
    try:
        body = Statement.of(data)
        rows += _name_faults(path, body.details)
        if digest in _named:
            return Checked(body, digest, [*rows, *_altered(log, body)])
        rows += _log_faults(log, body)
        rows += [
            f"the {name} arm {row}"
            for name, arms in body.details.arms.items()
            for arm in arms
            for row in misjudged(arm)
        ]
        rows += _verdict_faults(body.details)
    except StoreError as error:
        return Checked(None, digest, [*rows, error.what])
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        cause = faults_of(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        return Checked(None, digest, [*rows, f"the statement is malformed: {cause}"])
    return Checked(body, digest, rows)


def _name_faults(path: Path, details: Details) -> list[str]:
    """Differences between the statement and its folder and name."""
    if not shelf.NAME.match(path.name):
        return ["its name is not TIME_HOST_DIGEST.json"]
    when, host, _ = path.stem.split("_")
    due = {"pack": path.parent.name, "started": _time(when), "host": host}
    stated = {"pack": f"{details.pack:02d}", "started": details.started, "host": details.host.alias}
    return [f"it states {name} {stated[name]}, its path {due[name]}" for name in due if stated[name] != due[name]]


def _moment(when: str) -> datetime.datetime:
    return datetime.datetime.strptime(when, "%Y%m%dT%H%M%SZ")


def _time(when: str) -> str:
    """The time in a receipt's name as its statement writes it."""
    return f"{when[:4]}-{when[4:6]}-{when[6:11]}:{when[11:13]}:{when[13:]}"


def _log_faults(log: Path, body: Statement) -> list[str]:
    if rows := _altered(log, body):
        return rows
    return list(binding.faults(body, archive.data(log).decode("utf-8", "replace")))


def _altered(log: Path, body: Statement) -> list[str]:
    """Whether the log is not the one that the statement names."""
    if not log.exists() and not archive.exists(log):
        return [f"its log {log.name} is missing"]
    same = hashlib.sha256(archive.data(log)).hexdigest() == body.details.log_sha256
    return [] if same else [f"its log {log.name} was altered"]


def _verdict_faults(details: Details) -> list[str]:
    """Differences between stated and derived verdict and sentinels."""
    derived, faults = _derive(details), []
    allowed = derived if len(derived) == 1 else {Verdict.INCONCLUSIVE}
    if details.verdict not in allowed and not (details.verdict is Verdict.INCONCLUSIVE and unproved(details)):
        faults.append(f"it states {details.verdict}, its observations give {', '.join(sorted(allowed))}")
    earned = sentinels(details.kind, details.verdict, details.arms)
    if details.sentinels != earned:
        faults.append(f"it states the sentinels {details.sentinels}, its observations earn {earned}")
    return faults


def _derive(details: Details) -> set[Verdict]:
    """The verdicts of the repeats; a patched arm follows only a pristine arm that showed the bug."""
    pristine, patched, patch = details.pristine, details.patched, details.patch
    if not pristine and not patched:
        return {Verdict.PATCH_STALE if patch else Verdict.UNTESTABLE}
    if details.fixed:
        return {rule_guard(broken, fixed).verdict for broken, fixed in zip(pristine, details.fixed, strict=True)}
    if not pristine:
        return {Verdict.FIX_INEFFECTIVE if a.outcome == "bug" else Verdict.INCONCLUSIVE for a in patched}
    unexecuted = [name for name, ran in patch.hunks_executed.items() if not ran] if patch else []
    derived, rest = set[Verdict](), iter(patched)
    for arm in pristine:
        word = rule_pristine(arm).verdict
        if word is Verdict.REPRODUCED and patched:
            ruling = rule(arm, next(rest), unexecuted, details.kind)
            if details.census and is_healthy(ruling) and not derived:
                ruling = rule_census(ruling, details.census)  # it is taken in the first repeat
            word = ruling.verdict
        elif word is Verdict.REPRODUCED and patch:
            word = Verdict.PATCH_STALE
        derived.add(word)
    return derived


def unproved(details: Details) -> bool:
    """Whether a function that ran was not the tree's own; this makes a run inconclusive."""
    return any(file.foreign for arm in details.patched for file in arm.executed.values())


def refuse(faults: dict[Path, list[str]]) -> None:
    """Raises PatchlaneError, naming each receipt and its faults, if there are any."""
    if faults:
        rows = "\n".join(f"{path.parent.name}/{path.name}: {row}" for path, listed in faults.items() for row in listed)
        raise PatchlaneError(f"receipts do not verify:\n{rows}", "\n        ".join(map(shelf.remedy, faults)))


def verify_all(
    root: Path,
    folders: str = shelf.FOLDERS,
    named: Collection[str] = frozenset(),
    tell: Tell = lambda number, of: None,
) -> dict[Path, list[str]]:
    """{receipt or log: its faults} in the folders of ``root``, logs without a statement included.

    ``named``: digests of statements that were proved before; of these only the digests are compared. ``tell``: told
    the number of receipts so far, and of all, while many are proved.
    """
    _named.update(named)
    whole, damaged = _archives(root, folders)
    paths = [path for folder in whole for path in shelf.statements(folder)]
    beside = [path for index in damaged for path in shelf.statements(index.parent, archived=False)]
    others = _archives(shelf.COMMITTED, folders)[0] if root.resolve() != shelf.COMMITTED else []
    prove([*paths, *beside], tell)
    known = _known([*(path for folder in others for path in shelf.statements(folder)), *paths, *beside])
    firsts = _firsts(known.values())
    faults = {path: [*proof(path).faults, *place_faults(path)] for path in [*paths, *beside]}
    heads: dict[str, set[str]] = {}
    for folder in [*others, *whole]:
        heads.setdefault(folder.name, set()).update(archive.heads(folder))
    for path in paths:
        if not faults[path]:
            faults[path] += [*_chain_faults(path, known, firsts), *_archive_faults(path, heads[path.parent.name])]
    for log in root.glob(f"{folders}/*.log"):
        if log.name.startswith(".tmp-") or log.parent / archive.INDEX in damaged:
            continue
        if not archive.exists(log.with_suffix(".json")):
            faults[log] = [
                "the statement of this log is missing; python -m reproducers.manifest refresh SOURCE"
                " completes an interrupted import"
            ]
    scores = [path for folder in whole for path in archive.listed(folder, f"{mutation.PREFIX}*.json")]
    faults |= {path: [*mutation.faults(path), *place_faults(path)] for path in scores}
    return damaged | {path: rows for path, rows in faults.items() if rows}


def _archives(root: Path, folders: str) -> tuple[list[Path], dict[Path, list[str]]]:
    """(folders whose archive, if they have one, is whole, {index of another's: its faults})."""
    found = {folder: archive.faults(folder) for folder in sorted(root.glob(folders))}
    whole = [folder for folder, rows in found.items() if not rows]
    return whole, {folder / archive.INDEX: rows for folder, rows in found.items() if rows}


def _known(paths: list[Path]) -> dict[str, Path]:
    """{digest: receipt}."""
    readable = (path for path in paths if (path.stat().st_size <= LARGEST if path.is_file() else archive.exists(path)))
    return {
        archive.sha256(path) if archive.real(path) not in _proofs else proof(path).sha256: path for path in readable
    }


def _firsts(paths: Collection[Path]) -> dict[tuple[str, str], str]:
    """{(folder, host): the name of its first receipt}."""
    firsts: dict[tuple[str, str], str] = {}
    for path in paths:
        if shelf.NAME.match(path.name):
            place = path.parent.name, path.name.split("_")[1]
            firsts[place] = min(firsts.get(place, path.name), path.name)
    return firsts


def place_faults(path: Path) -> list[str]:
    """Why no record can have this folder or this time."""
    folder, latest, rows = path.parent.name, today() + datetime.timedelta(days=1), []
    if not any(ROOT.glob(f"packs/{folder}_*")):
        rows.append(f"there is no pack {folder}")
    if (when := shelf.WHEN.match(path.name)) and when[1][:8] > f"{latest:%Y%m%d}":
        rows.append(f"its day is in the future: {_time(when[1])[:10]}")
    return rows


def _archive_faults(path: Path, heads: set[str]) -> list[str]:
    """Whether the archive that the receipt names as that of its folder is still the beginning of one there."""
    head = proof(path).archive
    lost = head is not None and head not in heads
    return [f"the archive that it names, {str(head)[:12]}, is missing or was altered"] if lost else []


def _chain_faults(path: Path, known: dict[str, Path], firsts: dict[tuple[str, str], str]) -> list[str]:
    """Faults of the receipt's predecessor; two receipts may share one, as hosts and checkouts run side by side."""
    previous = proof(path).previous
    when, host, _ = path.name.split("_")
    if previous is None:
        first = min(path.name, firsts.get((path.parent.name, host), path.name))
        late = _moment(when) - _moment(first[:16]) > SIDE_BY_SIDE
        return [f"it names no predecessor, but {host} has had one since {first}"] if late else []
    if previous not in known:
        return [f"its predecessor {previous[:12]} is missing or was altered"]
    before = known[previous]
    if before.parent.name != path.parent.name:
        return [f"its predecessor is a receipt of pack {before.parent.name}: {before.name}"]
    return [f"its predecessor {before.name} started after it"] if before.name[:16] > when else []
