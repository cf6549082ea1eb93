"""A receipt as a record: an in-toto statement of one run, and the two lines of JSON that each arm prints into its log.

Receipts are written with schema_version 3. Versions 1 and 2 spell some of today's fields in sentences and names;
``Statement.of`` and ``record_of`` lift these into fields, and nothing else reads the sentences.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, StringConstraints, ValidationError

from patchlane.base.files import record_json, record_of_file
from reproducers.base.verdicts import Verdict
from reproducers.probe.checks import Outcome, State
from reproducers.record.origin import Origin, readable
from reproducers.record.schema import Kind, Model, Pin, Sha256

VERSION = 3
HEADED = 2  # the first schema_version whose logs begin with the run's entry
TYPED = 3  # the first whose checks and trees have fields in place of sentences
ARMS = ("pristine", "patched", "fixed")
OURS = '{"'  # begins a line of ours
NOT_FINITE = ("nan", "inf", "-inf")  # words for numbers that JSON does not have
ArmName = Literal["pristine", "patched", "fixed"]
BUG_ABOVE = re.compile(r"bug at or over (\d[\d.]*(?:e[-+]?\d+)?)")
RAISED = re.compile(r"no (?P<exception>\w+) /(?P<message>.*)/ from (?P<frame>\S+)", re.S)
TREE = re.compile(
    r"(?:(?P<distribution>[\w.-]+) )??"
    r"(?:git (?P<sha>[0-9a-f]{40})(?P<dirty> \(dirty\))?|folder (?P<name>.+)|(?P<release>\d[\w.+!-]*))"
    r"(?P<stacked_on>(?: \+ \d+_\w+)*)"
)


class Signature(Model):
    """The look of a crash by the bug: exception type, pattern of its message, end of a path in its traceback."""

    exception: str
    message: str
    frame: str


class Check(Model):
    """One named claim as an arm recorded it.

    A number at or over ``bug_above`` shows the bug, as does a crash with ``signature``. A number that is not finite is
    the word for it: "nan", "inf" or "-inf".
    """

    name: str
    role: Literal["bug", "guard", "note", "digest"]
    state: State
    measured: StrictInt | StrictFloat | str | None = None
    limit: StrictInt | StrictFloat | str | None = None
    reference: str = ""
    unit: str = ""
    detail: str = ""
    bug_above: float | None = None
    signature: Signature | None = None

    @property
    def shows_bug(self) -> bool:
        return self.role == "bug" and self.state == "bug"

    @property
    def number(self) -> float | None:
        """The measured number, a NaN or infinity of its word; None for what is no number."""
        if is_number(self.measured) or self.measured in NOT_FINITE:
            return float(self.measured)
        return None

    @property
    def numeric(self) -> bool:
        """Whether the check is a number with a limit."""
        return self.number is not None and is_number(self.limit)


Facts = dict[str, dict[str, Any]]  # {call or file: {fact: what was found}}


class Function(Model):
    """Digests of a function's code as it ran in the process, and as the file of the tree has it."""

    process: list[str]
    tree: list[str]


class Compiled(Model):
    """Source that a compiler took from the tree: its lines and its digest."""

    compiler: str
    first: int
    last: int
    sha256: str


class Executed(Model):
    """The lines and functions that ran of one file of the tree."""

    lines: list[int]
    functions: dict[str, Function]
    compiled: list[Compiled]

    @property
    def foreign(self) -> list[str]:
        """Functions whose running code is not the tree's. The module's own code does not count."""
        return [n for n, f in self.functions.items() if n != "<module>" and not set(f.process) <= set(f.tree)]


class Arm(Model):
    """How an arm ended, and its checks. ``seconds`` of wall time, ``peak_gib`` of memory."""

    outcome: Outcome
    reason: str
    remedy: str
    exit_code: int
    seconds: float
    peak_gib: float
    sentinel: str | None
    checks: list[Check]
    executed: dict[str, Executed]


class ArmRecord(Model):
    """The last line of an arm: its outcome and its checks."""

    patchlane: Literal["record"]
    outcome: Outcome
    reason: str
    remedy: str
    sentinel: str | None
    checks: list[Check]
    executed: dict[str, Executed]


class Gpu(Model):
    capability: str = ""
    driver: str = ""
    memory: str = ""
    name: str = ""


class Host(Model):
    """A host's abilities under its chosen ``alias``, never its network name.

    The oldest receipts have no ``platform``, and a run without an arm has only the alias.
    """

    alias: str = ""
    cores: int | None = None
    gpus: list[Gpu] = Field(default=[])
    machine: str = ""
    platform: str = ""


class Stamp(Model):
    """The first line of an arm: pack, package and its place, host and versions."""

    patchlane: Literal["stamp"]
    pack: int
    package: str
    label: str
    imported_from: str | None
    lane: str
    seed: int
    reproducer_sha256: Sha256
    host: Host
    versions: dict[str, str]


class Difference(Model):
    """What a call of the patched tree does otherwise, beside the bug; ``meant``: the pack's reason, if it has one."""

    call: str
    fact: str
    pristine: str
    patched: str
    meant: str | None = None

    def __str__(self) -> str:
        return f"{self.call}: {self.fact}: {self.patched} (without the patch: {self.pristine})"


class Census(Model):
    """By how many facts of calls both trees were compared, and which differ. ``untaken``: why there are none; ``cut``:
    why there are no more, where the patched tree's calls ended before its checks did."""

    facts: int
    differences: list[Difference]
    untaken: str = ""
    cut: str = ""

    @property
    def strayed(self) -> list[Difference]:
        """Differences that the pack does not mean."""
        return [one for one in self.differences if one.meant is None]


class PatchTried(Model):
    """How the patch applied to the tree, and whether each of its hunks was seen to run."""

    model_config = ConfigDict(populate_by_name=True)

    kind: str = Field(validation_alias="class", serialization_alias="class")
    hunks_executed: dict[str, bool]


class Digest(Model):
    sha256: Sha256


class Resource(Model):
    """A tree or file of the run, by digest. ``annotations`` is a tree's origin."""

    name: str
    digest: Digest
    annotations: Origin | None = None


class Details(Model):
    """patchlane's own part of a statement. The first receipts, all of bugs, have no ``kind``.

    ``previous``: the digest of the receipt before it; ``archive``: that of the committed archive of its folder, which
    only grows, over the members that it had then.
    """

    schema_version: Literal[1, 2, 3]
    pack: int
    kind: Kind = "bug"
    lane: Literal["cpu", "cuda"]
    arm: Literal["both", "pristine", "patched"]
    at: str
    pin: Pin | None
    fixed_pin: Pin | None = None
    artifact: Sha256 | None = None
    command: list[str]
    started: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    host: Host
    versions: dict[str, str]
    verdict: Verdict
    reason: str
    sentinels: list[str]
    patch: PatchTried | None
    pristine: list[Arm]
    patched: list[Arm]
    fixed: list[Arm] = Field(default=[])
    census: Census | None = None
    previous: Sha256 | None
    archive: Sha256 | None = None
    log_sha256: str = ""  # until there is a log

    @property
    def arms(self) -> dict[ArmName, list[Arm]]:
        return {"pristine": self.pristine, "patched": self.patched, "fixed": self.fixed}

    @property
    def day(self) -> datetime.date:
        """The day on which the run started, UTC."""
        return datetime.date.fromisoformat(self.started[:10])

    def checks(self, arm: ArmName) -> list[Check]:
        """The checks of an arm's last repeat; none if the arm did not run."""
        return [check for result in self.arms[arm][-1:] for check in result.checks]

    def every_check(self) -> Iterator[tuple[ArmName, Check]]:
        """(arm, check) of each arm's last repeat, in the order of the run."""
        for arm in self.arms:
            yield from ((arm, check) for check in self.checks(arm))


class Predicate(Model):
    """The in-toto Test Result; the lists name checks."""

    result: Literal["PASSED", "FAILED"]
    configuration: list[Resource]
    passedTests: list[str]
    warnedTests: list[str]
    failedTests: list[str]
    patchlane: Details


class Statement(Model):
    """One receipt."""

    model_config = ConfigDict(populate_by_name=True)

    type_: str = Field(validation_alias="_type", serialization_alias="_type")
    subject: list[Resource] = Field(min_length=1)
    predicateType: str
    predicate: Predicate

    @classmethod
    def of(cls, data: bytes) -> Statement:
        """The statement in a receipt's bytes. Raises ValueError (pydantic's is one) if they hold none."""
        body = record_of_file(data)
        try:
            if body["predicate"]["patchlane"]["schema_version"] < TYPED:
                body = _lifted(body)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"no statement: {type(error).__name__}: {error}") from error
        return cls.model_validate(body)

    @property
    def details(self) -> Details:
        return self.predicate.patchlane

    @property
    def tree(self) -> Resource:
        """The tree of the pristine arm; the pack if the run got no tree."""
        return self.subject[0]

    @property
    def digests(self) -> dict[str, str]:
        """{name: sha256} of the run's trees and files."""
        return {r.name: r.digest.sha256 for r in (*self.subject, *self.predicate.configuration)}

    def logged(self, sha256: str) -> Statement:
        """This statement with the digest of its log."""
        details = self.details.model_copy(update={"log_sha256": sha256})
        return self.model_copy(update={"predicate": self.predicate.model_copy(update={"patchlane": details})})

    def as_json(self) -> dict[str, Any]:
        """The JSON of the receipt, without fields that the receipt did not state or that were lifted out of names."""
        lifted = {"subject": {"__all__": {"annotations"}}} if self.details.schema_version < TYPED else None
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=lifted)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def stamp_of(line: str) -> Stamp | None:
    """The stamp in a line of an arm, None if the line is no stamp."""
    try:
        return Stamp.model_validate(_parsed(line))
    except ValueError:
        return None


def record_of(line: str, schema_version: int = VERSION) -> ArmRecord | None:
    """The record in a line of an arm, lifted from an earlier schema_version; None if the line is no record."""
    if not line.startswith(OURS):
        return None
    try:
        body = _parsed(line)
        if schema_version < TYPED and isinstance(body, dict) and isinstance(body.get("checks"), list):
            body = body | {"checks": [_check(check) for check in body["checks"]]}
        return ArmRecord.model_validate(body)
    except (ValueError, TypeError, AttributeError):
        return None


def _parsed(line: str) -> Any:
    """The value of a line in the form of ours. An escape in it may stand for a character that is no text.

    Raises ValueError for any other line: what the code under test prints is text, of any depth and length.
    """
    if not line.startswith(OURS):
        raise ValueError("a line of text")
    value = record_json(line)
    try:
        return json.loads(readable(json.dumps(value, ensure_ascii=False))) if "\\ud" in line else value
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def faults_of(error: ValidationError) -> str:
    """The first three faults of a record, by field, on one line."""
    return "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors()[:3])


def _lifted(body: dict[str, Any]) -> dict[str, Any]:
    """A statement of schema_version 1 or 2, its sentences and names turned into fields."""
    details = body["predicate"]["patchlane"]
    arms = {
        name: [arm | {"checks": [_check(check) for check in arm["checks"]]} for arm in details[name]]
        for name in ARMS
        if name in details
    }
    trees = 1 + bool(details.get("fixed"))
    subject = [_resource(entry) if place < trees else entry for place, entry in enumerate(body["subject"])]
    return body | {"subject": subject, "predicate": body["predicate"] | {"patchlane": details | arms}}


def _check(check: dict[str, Any]) -> dict[str, Any]:
    """A check with ``bug_above`` from the sentence in its detail and ``signature`` from the one in its limit."""
    above, raised = BUG_ABOVE.fullmatch(check["detail"]), RAISED.fullmatch(str(check["limit"]))
    fields: dict[str, Any] = {"bug_above": float(above[1])} if above else {}
    return check | fields | ({"signature": raised.groupdict()} if raised else {})


def _resource(entry: dict[str, Any]) -> dict[str, Any]:
    """A tree with the origin that its name spells. A pack's name, in a run without a tree, has none."""
    match = TREE.fullmatch(entry["name"])
    if match is None:
        return entry
    kind = "commit" if match["sha"] else "folder" if match["name"] else "release"
    stacked = [int(number) for number in re.findall(r" \+ (\d+)_", match["stacked_on"])]
    named = {name: match[name] for name in ("distribution", "release", "sha", "name")}
    return entry | {"annotations": {**named, "kind": kind, "stacked_on": stacked, "dirty": bool(match["dirty"])}}
