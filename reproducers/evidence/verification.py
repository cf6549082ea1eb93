"""Check receipts against themselves: recompute digests, derive verdicts anew from the records of the arms."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from reproducers.base.clock import today
from reproducers.base.errors import PatchlaneError, StoreError
from reproducers.base.files import bytes_of, opened
from reproducers.base.verdicts import Verdict
from reproducers.evidence import binding, shelf
from reproducers.record import mutation
from reproducers.record.receipt import Details, Statement, faults_of
from reproducers.record.schema import ROOT
from reproducers.trial.rulings import misjudged, rule, rule_guard, rule_pristine, sentinels

SIDE_BY_SIDE = datetime.timedelta(hours=1)  # for so long one checkout of a host may not know of a run in another


class Checked(NamedTuple):
    """One receipt read once: its statement (None if malformed), its digest, and the faults that it shows by itself."""

    body: Statement | None
    sha256: str
    faults: list[str]


_kept: dict[Path, tuple[tuple[int, ...], Checked]] = {}


def checked(path: Path) -> Checked:
    """The receipt compared with its name, log and observations; read again only if one of its files changed."""
    path = path.resolve()
    log = path.with_suffix(".log")
    files = [file.stat() for file in (path, log) if file.is_file()]
    now = tuple(value for s in files for value in (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino))
    if path not in _kept or _kept[path][0] != now:
        _kept[path] = now, _check(path, log)
    return _kept[path][1]


def _check(path: Path, log: Path) -> Checked:
    try:
        data, rows = bytes_of(path), list[str]()
    except StoreError as error:
        return Checked(None, "", [error.what])
    digest = hashlib.sha256(data).hexdigest()
    if digest[:12] != path.stem.rsplit("_", 1)[-1]:
        rows.append("the statement was altered: its sha256 does not start with the digest in its name")
    try:
        body = Statement.of(data)
        rows += _name_faults(path, body.details)
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
    if not log.exists():
        return [f"its log {log.name} is missing"]
    with opened(log) as source:
        data = source.read()
    if hashlib.sha256(data).hexdigest() != body.details.log_sha256:
        return [f"its log {log.name} was altered"]
    return list(binding.faults(body, data.decode("utf-8", "replace")))


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
    derived, rest = set(), iter(patched)
    for arm in pristine:
        word = rule_pristine(arm).verdict
        if word is Verdict.REPRODUCED and patched:
            word = rule(arm, next(rest), unexecuted, details.kind).verdict
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


def verify_all(root: Path, folders: str = shelf.FOLDERS) -> dict[Path, list[str]]:
    """{receipt or log: its faults} in the folders of ``root``, logs without a statement included."""
    paths = shelf.every(root, folders)
    known = {checked(path).sha256: path for path in [*shelf.every(shelf.COMMITTED, folders), *paths]}
    faults = {path: [*checked(path).faults, *_place_faults(path)] for path in paths}
    for path in paths:
        if not faults[path]:
            faults[path] += _chain_faults(path, known)
    for log in root.glob(f"{folders}/*.log"):
        if not log.name.startswith(".tmp-") and not log.with_suffix(".json").exists():
            faults[log] = [
                "the statement of this log is missing; python -m reproducers.manifest refresh SOURCE"
                " completes an interrupted import"
            ]
    faults |= {path: mutation.faults(path) for path in shelf.scores(root, folders)}
    return {path: rows for path, rows in faults.items() if rows}


def _place_faults(path: Path) -> list[str]:
    """Why no receipt can have this folder or this time."""
    folder, latest, rows = path.parent.name, today() + datetime.timedelta(days=1), []
    if not any(ROOT.glob(f"packs/{folder}_*")):
        rows.append(f"there is no pack {folder}")
    if shelf.NAME.match(path.name) and path.name[:8] > f"{latest:%Y%m%d}":
        rows.append(f"its day is in the future: {_time(path.name[:16])[:10]}")
    return rows


def _chain_faults(path: Path, known: dict[str, Path]) -> list[str]:
    """Faults of the receipt's predecessor; two receipts may share one, as hosts and checkouts run side by side."""
    body = checked(path).body
    previous = body.details.previous if body else None
    when, host, _ = path.name.split("_")
    if previous is None:
        own = [p.name for p in known.values() if p.parent.name == path.parent.name and shelf.NAME.match(p.name)]
        first = min((name for name in own if name.split("_")[1] == host), default=path.name)
        late = _moment(when) - _moment(first[:16]) > SIDE_BY_SIDE
        return [f"it names no predecessor, but {host} has had one since {first}"] if late else []
    if previous not in known:
        return [f"its predecessor {previous[:12]} is missing or was altered"]
    before = known[previous]
    if before.parent.name != path.parent.name:
        return [f"its predecessor is a receipt of pack {before.parent.name}: {before.name}"]
    return [f"its predecessor {before.name} started after it"] if before.name[:16] > when else []
