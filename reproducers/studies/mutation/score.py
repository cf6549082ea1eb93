"""The score of a pack's mutants: what is told of them, what is wrong, and the record that is kept."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.base.files import file_sha256, record_bytes, write_atomic
from patchlane.base.wording import count
from reproducers.evidence import receipts, saving
from reproducers.record import engine
from reproducers.record.mutation import EQUIVALENT, PREFIX, MutationScore, Others, Subject, Tally, Tried, log_of
from reproducers.record.receipt import Host
from reproducers.studies.mutation.candidates import Chosen
from reproducers.studies.mutation.trying import Ground, Outcome

Result = tuple[Tried, Outcome]


@dataclass(frozen=True)
class Sitting:
    """One pack's mutants as they were tried in one go."""

    ground: Ground
    chosen: Chosen
    results: list[Result]
    explained: dict[str, str]

    @property
    def tried(self) -> list[Tried]:
        return [tried for tried, _ in self.results]

    @property
    def survivors(self) -> list[Result]:
        """Those that nothing told from the fix and that nobody explains."""
        left = [(tried, outcome) for tried, outcome in self.results if tried.survived and not tried.explained]
        return [(tried, outcome) for tried, outcome in left if tried.how != "alternative"]

    @property
    def others(self) -> list[Tried]:
        """The alternatives."""
        return [tried for tried in self.tried if tried.how == "alternative"]

    def refused(self) -> Iterator[str]:
        """Right fixes that the checks do not accept, a line each."""
        for tried in self.others:
            if tried.tested and not tried.survived and not tried.unseen:
                yield f"{tried.where}: a right fix is refused by {', '.join(tried.caught_by) or tried.reason}"

    def misnamed(self) -> Iterator[str]:
        """Hand-written mutants that are not caught by the check that they name, a line each."""
        caught = {tried.name: tried for tried in self.tried}
        for mutant, candidate in self.chosen.hand:
            tried = caught[candidate.name]
            if tried.tested and not tried.survived and not mutant.catching(tried.caught_by):
                by = ", ".join(tried.caught_by) or tried.verdict.value
                yield f"{candidate.where}: not caught by {mutant.caught_by}, which it names, but by {by}"

    def stale(self) -> Iterator[str]:
        """Explanations that explain nothing, a line each."""
        mutants = [tried for tried in self.tried if tried.how != "alternative"]
        killed = {tried.name: tried for tried in mutants if tried.killed or tried.refused}
        for name in self.explained:
            if name not in self.chosen.names:
                yield f"{EQUIVALENT}: {name}: stale: there is no such mutant"
            elif name in killed:
                tried = killed[name]
                by = ", ".join(tried.caught_by) or tried.verdict.value
                yield f"{EQUIVALENT}: {name}: stale: it is no equivalent, it is caught by {by}"

    def exit_code(self) -> Exit:
        if self.survivors or any(self.misnamed()) or any(self.stale()) or any(self.refused()):
            return Exit.CONTRADICTED
        return Exit.OK if all(tried.tested for tried in self.tried) else Exit.CANNOT_TEST


def lines(sitting: Sitting) -> Iterator[str]:
    """What a person reads in the end: survivors with their diffs, what is wrong, and the scores."""
    pack = sitting.ground.run.pack
    for tried, outcome in sitting.survivors:
        yield f"\nsurvivor {tried.name} at {tried.where}; {count(len(outcome.checks), 'check')} ran and none fails:"
        yield f"  {'; '.join(outcome.checks)}"
        yield sitting.chosen.diffs[tried.name].rstrip("\n")
    if sitting.survivors:
        yield (
            f"\n  fix: a check in {pack.folder.name}/reproducer.py that fails with it; where none can,"
            f" its name and the reason in {pack.folder.name}/{EQUIVALENT}"
        )
    for tried in sitting.tried:
        if not tried.tested:
            yield f"could not be tested: {tried.name} at {tried.where}: {tried.reason}"
    for row in (*sitting.misnamed(), *sitting.stale(), *sitting.refused()):
        yield f"{pack.folder.name}/{row}"
    for how in ("hand", "generated"):
        mine = [tried for tried in sitting.tried if tried.how == how]
        if mine:
            yield f"{pack.id} {how}: {told(Tally.of(mine))}"
    if sitting.others:
        tally = Others.of(sitting.others)
        more = f", {tally.unseen} of them with lines that did not run" if tally.unseen else ""
        yield f"{pack.id} alternatives: {tally.accepted} of {tally.all} accepted{more}"
    if len(sitting.chosen.generated) < sitting.chosen.known and sitting.chosen.generated:
        yield f"{pack.id} generated: a sample of {len(sitting.chosen.generated)} of {sitting.chosen.known}"


def told(tally: Tally) -> str:
    """A tally in words."""
    share = "no score" if tally.score is None else f"{tally.score:.1%}"
    said = f"{tally.killed} of {tally.all} killed ({share})"
    said += f", {tally.refused} refused by no check" if tally.refused else ""
    said += f", {count(len(tally.survivors), 'survivor')}, {tally.explained} explained as equivalent"
    return said + (f", {tally.untested} not tested" if tally.untested else "")


def record(sitting: Sitting, host: str, command: list[str], seed: int) -> MutationScore:
    """The record of what was tried; a reason stands where no check's name does. ``seed`` drew the sample, if one."""
    run, bench = sitting.ground.run, sitting.ground.bench
    stamp = run.pristine[-1].stamp
    alias = receipts.alias(host)
    drawn = len(sitting.chosen.generated)
    sampled = drawn if 0 < drawn < sitting.chosen.known else None
    by_kind = {how: [tried for tried in sitting.tried if tried.how == how] for how in ("hand", "generated")}
    return MutationScore(
        schema_version=1,
        record="mutation score",
        started=f"{run.started:%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        subject=Subject(
            pack=run.pack.number,
            upstream=str(bench.tree.origin.of(run.pack.upstream.distribution)),
            lane="cuda" if run.request.lane == "cuda" else "cpu",
            patch=file_sha256(run.pack.patch),
            reproducer=file_sha256(run.pack.reproducer),
            tree=bench.tree.digest,
            needs=[need.digest for need in bench.needs],
            engine=engine.digest(),
            versions=stamp.versions if stamp else {},
            host=stamp.host.model_copy(update={"alias": alias}) if stamp else Host(alias=alias),
        ),
        sample=sampled,
        seed=seed,
        known=sitting.chosen.known,
        hand=Tally.of(by_kind["hand"]) if by_kind["hand"] else None,
        generated=Tally.of(by_kind["generated"]) if by_kind["generated"] else None,
        alternative=Others.of(sitting.others) if sitting.others else None,
        mutants=[tried.model_copy(update={"reason": ""}) if tried.caught_by else tried for tried in sitting.tried],
    ).logged()


def write(score: MutationScore, root: Path, places: dict[str, str]) -> Path:
    """Write record and log under ``root/NN/``, named by time, host and digest, without paths of this machine."""
    body = json.loads(receipts.redact(json.dumps(score.model_dump(mode="json")), places))
    log = log_of(body["mutants"])
    data = record_bytes(body | {"log_sha256": hashlib.sha256(log).hexdigest()})
    when = datetime.datetime.fromisoformat(score.started)
    stem = f"{PREFIX}{when:%Y%m%dT%H%M%SZ}_{score.subject.host.alias}_{hashlib.sha256(data).hexdigest()[:12]}"
    path = root / f"{score.subject.pack:02d}" / f"{stem}.json"
    try:
        write_atomic(path.with_suffix(".log"), log)
        write_atomic(path, data)
    except OSError as error:
        raise PatchlaneError(f"{path}: {error.strerror}", "--receipts DIR names another folder") from error
    return path


def roles(ground: Ground) -> dict[str, str]:
    """This machine's folders and the words that stand for them in a record."""
    return saving.places(ground.bench.store)
