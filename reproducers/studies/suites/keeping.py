"""Records of upstream's tests as files: written once, under the digest of their content, and checked against it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from patchlane.base.errors import PatchlaneError, StoreError, from_git
from patchlane.base.files import bytes_of, file_sha256, record_bytes, record_of_file, write_atomic
from reproducers.evidence import receipts, saving
from reproducers.evidence.verification import place_faults
from reproducers.probe import stamp
from reproducers.record import engine
from reproducers.record.origin import Origin, readable
from reproducers.record.receipt import Digest, Host, Resource, faults_of
from reproducers.record.schema import ROOT
from reproducers.record.upstream_tests import PREFIX, UpstreamTests
from reproducers.studies.suites.comparing import compared, ruling, uncounted
from reproducers.studies.suites.examination import Examination
from reproducers.upstream.store import Store, Tree

NAME = re.compile(rf"^{PREFIX}(\d{{8}}T\d{{6}}Z)_([a-z0-9-]+)_([0-9a-f]{{12}})\.json$")


def redactor(store: Store, upstream: Path | None) -> Callable[[str], str]:
    """Takes this machine's paths and its network name out of a text."""
    roles = saving.places(store, upstream)
    name = platform.node()
    if len(name) > 3 and name != "localhost":
        roles[name] = "<host>"
    return lambda text: receipts.redact(text, roles)


def record(seen: Examination, host: str, command: list[str]) -> UpstreamTests:
    """The record of what was observed."""
    verdict, reason = seen.ruling
    pin = seen.pin.model_dump(exclude_defaults=True, exclude={"needs", "expect"})
    files = {file.path: file_sha256(seen.tests.path / file.path) for file in seen.files}
    fields = {
        "schema_version": 1,
        "record": "upstream-tests",
        "pack": seen.pack.number,
        "lane": seen.asked.lane,
        "at": seen.at,
        "pin": pin,
        "tree": _of(seen.tree),
        "patched": _of(seen.patched),
        "patch": Resource(name=seen.patch.name, digest=Digest(sha256=file_sha256(seen.patch))),
        "tests": _of(seen.tests),
        "files": files,
        "needs": [_of(need) for need in (*seen.needs, *seen.beside.values())],
        "engine": engine.digest(),
        "command": [readable(argument) for argument in command],
        "started": seen.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": Host(alias=receipts.alias(host), **stamp.capability()),
        "versions": stamp.versions() | {"pytest": version("pytest")},
        "runs": seen.runs,
        "outcomes": seen.outcomes,
        "verdict": verdict,
        "reason": reason,
    }
    return UpstreamTests.model_validate(fields)


def _of(tree: Tree) -> Resource:
    origin = Origin.model_validate(tree.origin.model_dump(exclude_defaults=True))
    return Resource(name=str(origin), digest=Digest(sha256=tree.digest), annotations=origin)


def write(result: UpstreamTests, root: Path, redact: Callable[[str], str]) -> Path:
    """Write the record under ``root/NN/``, under its time, host and digest; an existing file stays."""
    body = result.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    data = record_bytes(json.loads(redact(json.dumps(body))))
    when = re.sub("[:-]", "", result.started)
    name = f"{PREFIX}{when}_{result.host.alias}_{hashlib.sha256(data).hexdigest()[:12]}.json"
    path = root / f"{result.pack:02d}" / name
    if not path.exists():
        write_atomic(path, data)
    return path


def every(root: Path) -> list[Path]:
    """All records under ``root``."""
    return sorted(root.glob(f"[0-9][0-9]*/{PREFIX}*.json"))


def read(path: Path) -> UpstreamTests:
    """The record. PatchlaneError naming what is wrong when it is not what was written."""
    rows = faults(path)
    if rows:
        raise PatchlaneError(f"{path.parent.name}/{path.name}: {'; '.join(rows)}", from_git(_shown(path)))
    return UpstreamTests.model_validate_json(path.read_bytes())


def _shown(path: Path) -> str:
    return os.path.relpath(path.resolve(), ROOT)


def faults(path: Path) -> list[str]:
    """What is wrong with a record: its name, its form, and each word that its own outcomes do not give."""
    if (match := NAME.match(path.name)) is None:
        return [f"its name is not {PREFIX}TIME_HOST_DIGEST.json"]
    try:
        data = bytes_of(path)
    except StoreError as error:
        return [error.what]
    rows = []
    if hashlib.sha256(data).hexdigest()[:12] != match[3]:
        rows.append("it was altered: its sha256 does not start with the digest in its name")
    try:
        result = UpstreamTests.model_validate(record_of_file(data))
    except ValidationError as error:
        return [*rows, f"it is malformed: {faults_of(error)}"]
    except ValueError as error:
        return [*rows, f"it is malformed: {error}"]
    stated = f"{result.pack:02d}", re.sub("[:-]", "", result.started), result.host.alias
    if stated != (path.parent.name, match[1], match[2]):
        rows.append(f"it states {', '.join(stated)}, which is not its place")
    for row in result.outcomes:
        due = compared(row.pristine, row.patched, row.again)
        if row.compared != due:
            rows.append(f"it calls {row.test} {row.compared}, its outcomes give {due}")
    if (result.verdict, result.reason) != ruling(result.outcomes, result.runs):
        rows.append(f"it states {result.verdict or 'that none is broken'}, its outcomes do not")
    return [*rows, *uncounted(result.outcomes, result.runs), *place_faults(path)]


def all_faults(root: Path) -> dict[Path, list[str]]:
    """{record: faults} of every record under ``root`` that has any."""
    return {path: rows for path in every(root) if (rows := faults(path))}


def broken(root: Path) -> list[str]:
    """A line for each pack, pin and lane whose newest record has a test that the patch breaks."""
    newest: dict[tuple[int, str, str], UpstreamTests] = {}
    for path in every(root):
        if not faults(path):
            result = UpstreamTests.model_validate_json(path.read_bytes())
            newest[result.pack, result.at, result.lane] = result
    return [
        f"pack{number:02d} {at} {lane}: {result.reason}"
        for (number, at, lane), result in sorted(newest.items())
        if result.verdict is not None and result.of("broken")
    ]


def take(source: Path, root: Path) -> list[Path]:
    """Copy the records of another host's run that ``root`` lacks. PatchlaneError when one is not what was written."""
    if not source.is_dir():
        raise PatchlaneError(f"{source} is not a folder", "python -m reproducers.upstream_tests PACK writes one")
    paths = every(source)
    for path in paths:
        read(path)
    new = [path for path in paths if not (root / path.parent.name / path.name).exists()]
    for path in new:
        (root / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, root / path.parent.name / path.name)
    return [root / path.parent.name / path.name for path in new]
