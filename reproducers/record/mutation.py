"""A pack's mutation score as a record, and the mutants that its author explains as equivalent.

``receipts/NN/mutation_TIME_HOST_DIGEST.json`` is no statement of a run: it says of every mutant that was tried what the
run with it was ruled to be, and by which checks. ``packs/NN_slug/mutants/equivalent.yaml`` is written by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from patchlane.base.errors import PatchlaneError, StoreError
from patchlane.base.files import file_sha256, record_of_file, within
from reproducers.base.verdicts import Verdict
from reproducers.kept import archive
from reproducers.record.receipt import Host, faults_of
from reproducers.record.schema import Model, Pack, Sha256, explain, read_yaml

PREFIX = "mutation_"
NAME = re.compile(rf"^{PREFIX}\d{{8}}T\d{{6}}Z_[a-z0-9-]+_[0-9a-f]{{12}}\.json$")
GENERATED = re.compile(r"[a-z_]+-[0-9a-f]{8}(-\d+)?")
HEALTHY = "healthy with the patch"  # ends the reason of a verdict that no check spoke against
NOT_RUN = "patched code not seen executing"  # begins that of one where checks are healthy and a line did not run
REASONS = {  # how the reason of a verdict begins
    Verdict.FIX_REGRESSES: "guards broken",
    Verdict.FIX_INEFFECTIVE: "patched tree still shows",
    Verdict.DIFFERENT_FAILURE: "patched",
}
LOG_FIELDS = ("name", "patch", "verdict", "reason", "caught_by")
LOGGED = 2  # the first schema_version with a log
APART = 3  # the first that counts mutants which no check refuses apart from killed ones
EQUIVALENT = "mutants/equivalent.yaml"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
How = Literal["hand", "generated", "alternative"]


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
    def odd(self) -> str:
        """What its name, place, verdict and reason do not say alike; "" where they do."""
        if self.how == "hand" and self.where != f"mutants/{self.name}.patch":
            return f"{self.where} is another mutant's file"
        if self.how == "alternative" and self.where != f"alternatives/{self.name}.patch":
            return f"{self.where} is another alternative's file"
        if self.how == "generated" and not GENERATED.fullmatch(self.name):
            return "no generated mutant has such a name"
        if self.survived != self.reason.endswith(HEALTHY) or (self.survived and self.caught_by):
            return f"it is {self.verdict}, its reason is {self.reason!r:.60}"
        if self.tested and bool(self.caught_by) == bool(self.reason):
            return f"it is {self.verdict} by {len(self.caught_by)} checks and by the reason {self.reason!r:.60}"
        said = not self.caught_by and self.verdict in REASONS
        return (
            f"it is {self.verdict} for {self.reason!r:.60}"
            if said and not self.reason.startswith(REASONS[self.verdict])
            else ""
        )

    @property
    def tested(self) -> bool:
        return self.verdict is not Verdict.UNTESTABLE

    @property
    def killed(self) -> bool:
        """Whether a check fails with it."""
        return self.tested and bool(self.caught_by)

    @property
    def refused(self) -> bool:
        """Whether it is refused, but by no check: a line of it did not run, say, or the arm ended."""
        return self.tested and not self.survived and not self.caught_by

    @property
    def survived(self) -> bool:
        return self.verdict is Verdict.REPRODUCED_AND_FIXED

    @property
    def unseen(self) -> bool:
        """Whether nothing speaks against it but that some line of it did not run."""
        return self.verdict is Verdict.INCONCLUSIVE and not self.caught_by and self.reason.startswith(NOT_RUN)


class Tally(Model):
    """Counts of one kind of mutants. What could not be tested is in ``all`` and is not killed, so it lifts no score.

    ``refused``: those that no check saw; None in records before APART, which have them among the killed.
    """

    all: int
    killed: int
    explained: int
    untested: int
    survivors: list[str]
    refused: int | None = None

    @classmethod
    def of(cls, tried: list[Tried], apart: bool = True) -> Tally:
        """The counts of these; an explained mutant counts as explained only where it survived.

        ``apart``: as from APART on.
        """
        left, refused = [one for one in tried if one.survived], sum(one.refused for one in tried)
        return cls(
            all=len(tried),
            killed=sum(one.killed for one in tried) + (0 if apart else refused),
            refused=refused if apart else None,
            explained=sum(one.explained for one in left),
            untested=sum(not one.tested for one in tried),
            survivors=[one.name for one in left if not one.explained],
        )

    @property
    def score(self) -> float | None:
        """Killed mutants of those that are not explained as equivalent; None where there is none."""
        counted = self.all - self.explained
        return self.killed / counted if counted else None


class Others(Model):
    """Counts of alternatives, right fixes beside the pack's: ``refused`` names those that its checks do not accept.

    ``unseen``: of those accepted, the ones of which some line did not run here.
    """

    all: int
    accepted: int
    refused: list[str]
    untested: int
    unseen: int = 0

    @classmethod
    def of(cls, tried: list[Tried]) -> Others:
        """The counts of these."""
        return cls(
            all=len(tried),
            accepted=sum(one.survived or one.unseen for one in tried),
            refused=[one.name for one in tried if one.tested and not (one.survived or one.unseen)],
            untested=sum(not one.tested for one in tried),
            unseen=sum(one.unseen for one in tried),
        )


class MutationScore(Model):
    """The mutants and alternatives of one pack that were tried in one go.

    ``sample`` of the ``known`` generated mutants were drawn with ``seed``; ``sample`` is None where all were tried.
    From schema_version 2 the mutants stand in the order in which ``seed`` draws their names, and ``log_sha256`` is the
    digest of a log beside the record, with a line a mutant. Earlier records have the manifest as their only witness.
    """

    schema_version: Literal[1, 2, 3]
    record: Literal["mutation score"]
    started: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    command: list[str]
    subject: Subject
    sample: int | None
    seed: int | None
    known: int
    hand: Tally | None
    generated: Tally | None
    alternative: Others | None = None
    mutants: list[Tried]
    log_sha256: Sha256 | None = None

    @property
    def log(self) -> bytes:
        """What the log beside the record holds."""
        return log_of(self.model_dump(mode="json")["mutants"])

    def logged(self) -> MutationScore:
        """This score as a record that has a log."""
        return self.model_copy(update={"schema_version": APART, "log_sha256": hashlib.sha256(self.log).hexdigest()})

    @model_validator(mode="after")
    def _whole(self) -> MutationScore:
        if (self.log_sha256 is None) != (self.schema_version < LOGGED):
            raise ValueError("log_sha256: records from schema_version 2 have a log, earlier ones have none")
        drawn = [one.name for one in self.mutants if one.how == "generated"]
        if self.schema_version >= LOGGED and drawn != in_order(drawn, self.seed or 0):
            raise ValueError("mutants: they are not in the order in which the seed draws their names")
        names = [one.name for one in self.mutants]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"mutants: {', '.join(twice)} are told twice")
        if odd := [f"{one.name}: {one.odd}" for one in self.mutants if one.odd]:
            raise ValueError(f"mutants: {'; '.join(odd[:3])}")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> MutationScore:
        for how in ("hand", "generated"):
            tally, tried = getattr(self, how), [one for one in self.mutants if one.how == how]
            apart = self.schema_version >= APART or bool(tally and tally.refused is not None)
            if (Tally.of(tried, apart) if tried else None) != tally:
                raise ValueError(f"{how}: its counts are not those of its mutants")
        others = [one for one in self.mutants if one.how == "alternative"]
        if (Others.of(others) if others else None) != self.alternative:
            raise ValueError("alternative: its counts are not those of its alternatives")
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
        refused = sum(tally.refused or 0 for tally in tallies)
        said += "" if self.schema_version >= APART else " †"
        said += f", {refused} refused by no check" if refused else ""
        if self.alternative:
            said += f", {self.alternative.accepted} of {self.alternative.all} alternatives accepted"
            said += (
                f", {self.alternative.unseen} of them with lines that did not run" if self.alternative.unseen else ""
            )
        return said + (f", {self.sample} of {self.known} drawn" if self.sample is not None else "")


def log_of(mutants: list[dict[str, Any]]) -> bytes:
    """The log of mutants as a record has them: a line of JSON each."""
    rows = [{name: one[name] for name in LOG_FIELDS} for one in mutants]
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()


def in_order(names: list[str], seed: int) -> list[str]:
    """The names of generated mutants in the order in which ``seed`` draws them; it hangs on the names alone."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode()).hexdigest()[:8])


def records(folder: Path) -> list[Path]:
    """A folder's mutation scores, oldest first."""
    return [path for path in archive.listed(folder, f"{PREFIX}*.json") if NAME.match(path.name)]


def read(path: Path) -> MutationScore:
    """One mutation score; PatchlaneError where it is none or was altered."""
    if rows := faults(path):
        name = f"{path.parent.name}/{path.name}"
        raise PatchlaneError(
            f"{name}: {'; '.join(rows)}", f"python -m reproducers.mutate pack{path.parent.name} --keep"
        )
    return MutationScore.model_validate_json(archive.data(path))


def faults(path: Path) -> list[str]:
    """What is wrong with a file that is named as a mutation score is; none where nothing is."""
    if not NAME.match(path.name):
        return [f"its name is not {PREFIX}TIME_HOST_DIGEST.json"]
    rows = []
    try:
        data = archive.data(path)
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
    log = path.with_suffix(".log")
    if score.log_sha256 is not None:
        if not archive.exists(log):
            rows.append(f"its log {log.name} is missing")
        elif (told := archive.data(log)) != score.log or hashlib.sha256(told).hexdigest() != score.log_sha256:
            rows.append(f"its mutants are not those of its log {log.name}")
    return rows + [
        f"it states {key} {stated[key]}, its place is of {due[key]}" for key in due if due[key] != stated[key]
    ]


def newest(pack: Pack, root: Path) -> MutationScore | None:
    """The newest score of all mutants that speaks for the pack as it is, else the newest of some; None without any."""
    scores = [score for path in records(root / f"{pack.number:02d}") if (score := read(path)).of(pack)]
    return max(
        scores, key=lambda score: (score.whole, bool(score.hand or score.generated), score.started), default=None
    )
