"""One in-toto statement (Test Result v0.1) and one log a run, never overwritten, chained by digest.

Every reader gets a receipt through ``statement_of``, which refuses an altered or incomplete one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256, record_bytes
from reproducers.evidence import binding, booking, shelf
from reproducers.evidence.shelf import chain, remedy, sweep
from reproducers.evidence.verification import checked
from reproducers.kept import archive
from reproducers.record import engine
from reproducers.record.origin import Origin, readable
from reproducers.record.receipt import VERSION, Details, Digest, Host, PatchTried, Predicate, Resource, Statement
from reproducers.record.schema import Pack, Pin
from reproducers.trial.experiment import Run, expected
from reproducers.upstream.store import Store, Tree

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"


def alias(name: str) -> str:
    """The host's chosen alias, never its network name. Raises PatchlaneError if it is not of the form [a-z0-9-]."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise PatchlaneError(f"host alias {name!r} is not of the form [a-z0-9-]", "--host h200-1")
    return name


def redact(line: str, places: dict[str, str]) -> str:
    """The line without paths of this machine: each known folder, longest first, becomes its role.

    A folder whose name only begins like a known one is another folder.
    """
    for path in sorted(places, key=len, reverse=True):
        for text in {path, json.dumps(path)[1:-1]}:  # JSON escapes characters outside ASCII
            line = re.sub(re.escape(text) + r"(?![\w-])", places[path], line)
    return line


def statement(run: Run, host: str, command: list[str], previous: str | None) -> Statement:
    """The in-toto statement of one run, still without the digest of its log."""
    pack, details = run.pack, _details(run, host, command, previous)
    as_expected = run.ruling.verdict in expected(pack, run.request)
    subject = [_of_tree(tree) for tree in (run.tree, run.fixed_tree) if tree]
    if run.patch_file:
        subject.append(_resource(run.patch_file.name, file_sha256(run.patch_file)))
    return Statement(
        type_=STATEMENT,
        subject=subject if run.tree else [_resource(pack.id, engine.digest()), *subject],
        predicateType=PREDICATE,
        predicate=Predicate(
            result="PASSED" if as_expected else "FAILED",
            configuration=[
                _resource("pack.yaml", file_sha256(pack.folder / "pack.yaml")),
                _resource("reproducer.py", file_sha256(pack.reproducer)),
                _resource("engine", engine.digest()),
            ],
            **binding.tests(details),
            patchlane=details,
        ),
    )


def _details(run: Run, host: str, command: list[str], previous: str | None) -> Details:
    pack = run.pack
    stamp = next((a.stamp for a in [*run.pristine, *run.patched] if a.stamp), None)
    arms: dict[str, object] = {
        name: [a.arm() for a in results] for name, results in run.arms.items() if results or name != "fixed"
    }
    fields: dict[str, object] = {
        "schema_version": VERSION,
        "pack": pack.number,
        "kind": pack.kind,
        "lane": run.request.lane,
        "arm": run.request.arm,
        "at": run.request.at,
        "pin": _pin(run.pin) if run.pin else None,
        "fixed_pin": _pin(pack.pins["fixed"]) if run.fixed else None,
        "artifact": run.artifact,
        "command": [readable(argument) for argument in command],
        "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": Host(alias=host, **(stamp.host.model_dump(exclude_unset=True) if stamp else {})),
        "versions": stamp.versions if stamp else {},
        "verdict": run.ruling.verdict,
        "reason": run.ruling.reason,
        "sentinels": run.sentinels,
        "patch": PatchTried(kind=run.patch.kind.value, hunks_executed=run.hunks) if run.patch else None,
        "previous": previous,
        **({"archive": held[-1]} if (held := archive.heads(shelf.COMMITTED / f"{pack.number:02d}")) else {}),
        **arms,
        **({"census": run.census} if run.census else {}),
    }
    return Details.model_validate(fields)


def _pin(pin: Pin) -> Pin:
    """The fields of the pin that name tree and patch."""
    return Pin.model_validate(pin.model_dump(exclude_defaults=True, exclude={"needs", "expect"}))


def _of_tree(tree: Tree) -> Resource:
    origin = Origin.model_validate(tree.origin.model_dump(exclude_defaults=True))
    return Resource(name=str(origin), digest=Digest(sha256=tree.digest), annotations=origin)


def _resource(name: str, sha256: str) -> Resource:
    return Resource(name=name, digest=Digest(sha256=sha256))


def statement_of(path: Path) -> Statement:
    """A receipt's statement. Raises PatchlaneError, naming the faults, if statement or log was altered."""
    receipt = checked(path)
    if receipt.faults or receipt.body is None:
        path = path.resolve()
        name = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
        raise PatchlaneError(f"{name}: {'; '.join(receipt.faults)}", remedy(path))
    return receipt.body


def read(path: Path) -> Details:
    """This project's part of a receipt's statement. Raises as ``statement_of`` does."""
    return statement_of(path).details


def digests(path: Path) -> dict[str, str]:
    """{name: sha256} of the trees and files of a receipt's run. Raises as ``statement_of`` does."""
    return statement_of(path).digests


def newest(pack: Pack, lane: str, root: Path, pin: str = "live") -> Path | None:
    """The newest receipt of both arms in one lane at the pin of that name whose verdict counts; None without one."""
    for path in reversed(chain(root / f"{pack.number:02d}")):
        body = statement_of(path)
        details = body.details
        at = details.at if pin == "live" else pack.pin_name(details.at)
        asked = details.lane == lane and at == pin and details.arm == "both"
        if asked and booking.counts(details) and not booking.mismatch(pack, body):
            return path
    return None


def newest_of(pack: Pack, root: Path, pin: str = "live") -> dict[str, Path]:
    """{lane: its newest receipt at the pin}, by ``newest``; lanes without a receipt are left out."""
    return {lane: path for lane in sorted(pack.lanes) if (path := newest(pack, lane, root, pin))}


def write(run: Run, root: Path, host: str, command: list[str], places: dict[str, str]) -> Path:
    """Write the run's log and statement under ``root/NN/``, complete or absent; the statement's path.

    The name holds the second and the digest: two runs that end alike in one second, with no receipt between them
    that counts, are one receipt. Raises OSError where the folder refuses a file.
    """
    folder, when = root / f"{run.pack.number:02d}", f"{run.started:%Y%m%dT%H%M%SZ}"
    folder.mkdir(parents=True, exist_ok=True)
    with _turn(folder):
        sweep(folder)
        last = max(_earlier(folder, when), key=lambda path: path.name, default=None)
        body = statement(run, alias(host), command, archive.sha256(last) if last else None)
        lines = [f"[run] {json.dumps(binding.head(body), sort_keys=True)}", *run.log]
        log = ("\n".join(redact(line, places) for line in lines) + "\n").encode()
        whole = body.logged(hashlib.sha256(log).hexdigest()).as_json()
        data = record_bytes(json.loads(redact(json.dumps(whole), places)))
        stem = f"{when}_{host}_{hashlib.sha256(data).hexdigest()[:12]}"
        _create(folder / f"{stem}.log", log)
        _create(folder / f"{stem}.json", data)
    return folder / f"{stem}.json"


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One writer of ``folder`` at a time, by a lock in the store: a working file is no evidence.

    Without one where the store takes no file: receipts of one moment may share their predecessor.
    """
    key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(FileLock(Store().root / "locks" / f"receipts-{key}.lock"))
        yield


def _earlier(folder: Path, when: str) -> list[Path]:
    """The receipts that a run may name as its predecessor: not started later, without a fault, and importable."""
    paths = [path for place in (shelf.COMMITTED / folder.name, folder) for path in chain(place)]
    known = [(path, checked(path)) for path in paths if path.name[: len(when)] <= when]
    return [path for path, (body, _, faults) in known if body and not faults and booking.counts(body.details)]


def _create(path: Path, data: bytes) -> None:
    """Create ``path`` whole. An existing file is never overwritten: FileExistsError if it holds anything else."""
    scratch = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    scratch.write_bytes(data)
    try:
        os.link(scratch, path)
    except FileExistsError:
        if path.read_bytes() != data:
            raise
    finally:
        scratch.unlink()
