"""Upstream's own tests as records: which files belong to a pack, and what each test did on both trees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from reproducers.base.verdicts import Verdict
from reproducers.record.receipt import Host, Resource
from reproducers.record.schema import Model, Pin, Sha256, explain, read_yaml

LISTED = "upstream_tests.yaml"
PREFIX = "upstream-tests_"  # of a record's file name, which has the form of a receipt's otherwise
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]
TestPath = Annotated[str, StringConstraints(pattern=r"^(\w[\w.-]*/)*\w[\w.-]*\.py$")]
LaneName = Literal["cpu", "cuda"]
Seen = Literal["passed", "failed", "error", "skipped", "timed out", "crashed", "not run"]
Compared = Literal["passed both", "failed both", "skipped both", "mended", "broken", "flaky", "not compared"]
Ended = Literal["finished", "timed out", "crashed", "another tree"]


class Listed(Model):
    """A test file of upstream's repository, by its path there, and the lanes in which it says something.

    ``environment``: variables that are set for it. ``select``: which of its tests, as pytest's ``-k``. ``stand_ins``:
    compiled modules that the package imports and these tests do not call; where this Python has none, an empty one.
    ``cuda_needs``: sets of needs.yaml that it has beside those of the pin on the cuda lane.
    """

    path: TestPath
    lanes: list[LaneName] = Field(default=["cpu", "cuda"], min_length=1)
    environment: dict[str, str] = Field(default={})
    select: str = ""
    stand_ins: list[ModuleName] = Field(default=[])
    cuda_needs: list[str] = Field(default=[])
    note: str = ""


class Side(Model):
    """What a test did on one tree, with the last line of its error or the reason of its skip."""

    outcome: Seen
    error: str = ""


class Compare(Model):
    """One test on both trees; ``again``: where the two differed, the same test run alone, pristine then patched."""

    test: str
    pristine: Side
    patched: Side
    again: tuple[Side, Side] | None = None
    compared: Compared


class FileRun(Model):
    """One test file in one process: how that ended, wall seconds, and which of the patch's files it imported.

    ``ended`` "another tree": code of the package under test came from elsewhere, so that nothing it says counts.
    ``stand_ins``: the listed modules that this Python did not have and an empty one stood in for. ``needs``: sets of
    needs.yaml beside those of the pin.
    """

    path: TestPath
    environment: dict[str, str] = Field(default={})
    select: str = ""
    stand_ins: list[ModuleName] = Field(default=[])
    needs: list[str] = Field(default=[])
    arm: Literal["pristine", "patched"]
    tests: int
    ended: Ended
    reason: str = ""
    imported: list[str]
    seconds: float
    peak_gib: float


class UpstreamTests(Model):
    """A record of upstream's tests on the pristine and on the patched tree of one pack in one lane."""

    schema_version: Literal[1]
    record: Literal["upstream-tests"]
    pack: int
    lane: LaneName
    at: str
    pin: Pin
    tree: Resource
    patched: Resource
    patch: Resource
    tests: Resource
    files: dict[TestPath, Sha256]
    needs: list[Resource]
    engine: Sha256
    command: list[str]
    started: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    host: Host
    versions: dict[str, str]
    runs: list[FileRun]
    outcomes: list[Compare]
    verdict: Literal[Verdict.FIX_REGRESSES, Verdict.UNTESTABLE] | None = None
    reason: str

    def of(self, word: Compared) -> list[Compare]:
        """The tests of which that is to be said."""
        return [outcome for outcome in self.outcomes if outcome.compared == word]


def listed(packs: Path) -> dict[int, list[Listed]]:
    """{pack: its test files} as ``upstream_tests.yaml`` in the folder of packs has them; empty where there is none.

    PatchlaneError with file and line for anything else than that.
    """
    path = packs / LISTED
    if not path.exists():
        return {}
    text, data = read_yaml(path)
    try:
        return TypeAdapter(dict[int, list[Listed]]).validate_python(data or {})
    except ValidationError as error:
        raise explain(path, text, error) from error
