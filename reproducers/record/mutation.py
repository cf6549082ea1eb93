"""A pack's mutation score as a record, and the mutants that its author explains as equivalent.

``receipts/NN/mutation_TIME_HOST_DIGEST.json`` is no statement of a run: it says of every mutant that was tried what the
run with it was ruled to be, and by which checks. ``packs/NN_slug/mutants/equivalent.yaml`` is written by hand.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from reproducers.base.errors import PatchlaneError, StoreError
from reproducers.base.files import bytes_of, file_sha256, record_of_file, within
from reproducers.base.verdicts import Verdict
from reproducers.record.receipt import Host, faults_of
from reproducers.record.schema import Model, Pack, Sha256, explain, read_yaml

PREFIX = "mutation_"
NAME = re.compile(rf"^{PREFIX}\d{{8}}T\d{{6}}Z_[a-z0-9-]+_[0-9a-f]{{12}}\.json$")
EQUIVALENT = "mutants/equivalent.yaml"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
How = Literal["hand", "generated"]


class Equivalent(Model):
    """A mutant that no check can tell from the fix, by its stable name, and why that is so.

    ``lane`` where only that lane's hosts cannot tell it: on a CPU every tensor is on the same device.
    """

    name: Text
    reason: Text
    lane: Literal["cpu", "cuda"] | None = None


class Equivalents(Model):
    schema_version: Literal[1]
    equivalent: list[Equivalent] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Equivalents:
        names = [row.name for row in self.equivalent]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"explained twice: {', '.join(twice)}")
        return self


def equivalents(pack: Pack, lane: str) -> dict[str, str]:
    """{mutant: why it is equivalent in this lane} of a pack.

    PatchlaneError with file and line where the file is not whole.
    """
    path = pack.folder / EQUIVALENT
    if not path.is_file():
        return {}
    text, data = read_yaml(path)
    try:
        rows = Equivalents.model_validate(data).equivalent
    except ValidationError as error:
        raise explain(path, text, error) from error
    return {row.name: row.reason for row in rows if row.lane in (None, lane)}


class Subject(Model):
    """What the mutants were made of and tried with; ``tree`` and ``needs`` are digests of content."""

    pack: int
    upstream: str
    lane: Literal["cpu", "cuda"]
    patch: Sha256
    reproducer: Sha256
    tree: Sha256
    needs: list[Sha256]
    engine: Sha256
    versions: dict[str, str]
    host: Host


class Tried(Model):
    """One mutant and the verdict with it. ``caught_by``: the checks that told it from the fix, by name.

    ``patch`` is the digest of the whole patch with the mistake in it, ``where`` the line of the patched file or the
    file of a hand-written mutant, and ``source`` that file's digest, which older records have not.
    """

    name: str
    how: How
    where: str
    patch: Sha256
    source: Sha256 | None = None
    verdict: Verdict
    reason: str
    caught_by: list[str]
    explained: bool

    @property
    def tested(self) -> bool:
        return self.verdict is not Verdict.UNTESTABLE

    @property
    def killed(self) -> bool:
        return self.tested and self.verdict is not Verdict.REPRODUCED_AND_FIXED

    @property
    def survived(self) -> bool:
        return self.verdict is Verdict.REPRODUCED_AND_FIXED


class Tally(Model):
    """Counts of one kind of mutants. What could not be tested is in ``all`` and is not killed, so it lifts no score."""

    all: int
    killed: int
    explained: int
    untested: int
    survivors: list[str]

    @classmethod
    def of(cls, tried: list[Tried]) -> Tally:
        """The counts of these; an explained mutant counts as explained only where it survived."""
        left = [one for one in tried if one.survived]
        return cls(
            all=len(tried),
            killed=sum(one.killed for one in tried),
            explained=sum(one.explained for one in left),
            untested=sum(not one.tested for one in tried),
            survivors=[one.name for one in left if not one.explained],
        )

    @property
    def score(self) -> float | None:
        """Killed mutants of those that are not explained as equivalent; None where there is none."""
        counted = self.all - self.explained
        return self.killed / counted if counted else None


class MutationScore(Model):
    """The mutants of one pack that were tried in one go.

    ``sample`` of the ``known`` generated mutants were drawn with ``seed``; both are None where all were tried.
    """

    schema_version: Literal[1]
    record: Literal["mutation score"]
    started: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    command: list[str]
    subject: Subject
    sample: int | None
    seed: int | None
    known: int
    hand: Tally | None
    generated: Tally | None
    mutants: list[Tried]

    @model_validator(mode="after")
    def _consistent(self) -> MutationScore:
        for how in ("hand", "generated"):
            tally, tried = getattr(self, how), [one for one in self.mutants if one.how == how]
            if (Tally.of(tried) if tried else None) != tally:
                raise ValueError(f"{how}: its counts are not those of its mutants")
        drawn = self.known if self.sample is None else self.sample
        if self.generated is not None and self.generated.all != drawn:
            raise ValueError(f"generated: {self.generated.all} were tried, and {drawn} were to be")
        return self

    def of(self, pack: Pack) -> bool:
        """Whether it speaks for the patch, the reproducer and the hand-written mutants that it names, as they are."""
        now = (pack.number, file_sha256(pack.patch), file_sha256(pack.reproducer)) if pack.patch.is_file() else None
        if (self.subject.pack, self.subject.patch, self.subject.reproducer) != now:
            return False
        sources = {within(pack.folder, one.where): one.source for one in self.mutants if one.source}
        return all(path.is_file() and file_sha256(path) == source for path, source in sources.items())

    @property
    def whole(self) -> bool:
        """Whether all mutants that are generated were tried."""
        return self.generated is not None and self.sample is None

    @property
    def cell(self) -> str:
        """Killed of all, for a table: with the explained ones, and of how many the sample was drawn."""
        tallies = [tally for tally in (self.hand, self.generated) if tally]
        explained = sum(tally.explained for tally in tallies)
        said = f"{sum(tally.killed for tally in tallies)}/{sum(tally.all for tally in tallies)}"
        said += f", {explained} equivalent" if explained else ""
        return said + (f", {self.sample} of {self.known} drawn" if self.sample is not None else "")


def records(folder: Path) -> list[Path]:
    """A folder's mutation scores, oldest first."""
    return sorted(path for path in folder.glob(f"{PREFIX}*.json") if NAME.match(path.name))


def read(path: Path) -> MutationScore:
    """One mutation score; PatchlaneError where it is none or was altered."""
    if rows := faults(path):
        name = f"{path.parent.name}/{path.name}"
        raise PatchlaneError(
            f"{name}: {'; '.join(rows)}", f"python -m reproducers.mutate pack{path.parent.name} --keep"
        )
    return MutationScore.model_validate_json(path.read_bytes())


def faults(path: Path) -> list[str]:
    """What is wrong with a file that is named as a mutation score is; none where nothing is."""
    if not NAME.match(path.name):
        return [f"its name is not {PREFIX}TIME_HOST_DIGEST.json"]
    rows = []
    try:
        data = bytes_of(path)
        if hashlib.sha256(data).hexdigest()[:12] != path.stem.rsplit("_", 1)[-1]:
            rows.append("the record was altered: its sha256 does not start with the digest in its name")
        score = MutationScore.model_validate(record_of_file(data))
    except StoreError as error:
        return [error.what]
    except ValidationError as error:
        return [*rows, f"the record is malformed: {faults_of(error)}"]
    except ValueError as error:
        return [*rows, f"the record is malformed: {error}"]
    _, when, host, _ = path.stem.split("_")
    stated: dict[str, Any] = {"pack": f"{score.subject.pack:02d}", "host": score.subject.host.alias}
    stated["started"] = re.sub(r"[-:]", "", score.started)
    due = {"pack": path.parent.name, "host": host, "started": when}
    return rows + [
        f"it states {key} {stated[key]}, its place is of {due[key]}" for key in due if due[key] != stated[key]
    ]


def newest(pack: Pack, root: Path) -> MutationScore | None:
    """The newest score of all mutants that speaks for the pack as it is, else the newest of some; None without any."""
    scores = [score for path in records(root / f"{pack.number:02d}") if (score := read(path)).of(pack)]
    return max(scores, key=lambda score: (score.whole, score.started), default=None)
