"""Mutants tried: the pack's own run once, then each mutant's patched arm alone beside that run's pristine arm.

What became of a mutant is kept in the store by content, ``cache/mutants/KEY.json``, so that only new ones run again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from patchlane.base.files import file_sha256, json_sha256, scratch_folder, temporary, write_atomic
from reproducers.base.verdicts import Verdict
from reproducers.desk.start import mutants as hand
from reproducers.record import engine
from reproducers.record.mutation import How, Tried
from reproducers.record.schema import Lane, Model, Pack
from reproducers.studies.mutation.ablation import with_patch
from reproducers.trial.arms import kill_children
from reproducers.trial.experiment import Bench, Request, Run, bench_of, execute, with_census_of, with_patch_of
from reproducers.upstream import pins
from reproducers.upstream.store import Store, Tree

COMPILERS = ("triton", "tilelang", "inductor", "bytecode/interpreter")  # caches by content, which all trees share
Ended = Callable[[int, Tried, float], None]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mutant to try: the ``text`` of the whole patch with the mistake in it.

    ``lost`` and ``made``: the lines that the mistake takes away and those that stand in their place, stripped.
    ``source``: the digest of a hand-written one's file.
    """

    name: str
    how: How
    where: str
    text: str
    lost: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    source: str | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class Outcome(Model):
    """What is kept of a mutant's run. ``checks``: how many the patched arm made."""

    verdict: Verdict
    reason: str
    caught_by: list[str]
    checks: list[str]


@dataclasses.dataclass(frozen=True)
class Ground:
    """What all mutants of a pack are tried on: its own run, where that ran, and what decides beside a mutant's text."""

    run: Run
    bench: Bench
    key: dict[str, object]

    @property
    def tree(self) -> Tree:
        return self.bench.tree


class Unproved(PatchlaneError):
    """The pack itself does not do what it claims, so nothing can be said of a mutant."""

    exit_code = Exit.CONTRADICTED


def pinned_tree(pack: Pack) -> Tree:
    """The tree of the pack's live pin, which mutants are made for."""
    return pins.pin_tree(Store(), pack, pack.pins["live"])


def prepare(pack: Pack, request: Request, tell: Callable[[str], None] = lambda line: None) -> Ground:
    """Run the pack as it is, but for its census, which ``try_all`` takes beside the mutants' arms.

    CannotTestHere where it cannot be tested, Unproved where its fix does not hold.
    """
    arms = dataclasses.replace(request, census=False)
    run = execute(pack, arms, Store(), lambda arm, line: tell(f"[{arm}] {line}"))
    _hold(run)
    run.request = dataclasses.replace(run.request, census=request.census)
    bench = bench_of(run, Store(), lambda arm, line: None)
    stamp = run.pristine[-1].stamp
    key = {
        "reproducer": file_sha256(pack.reproducer),
        "record": file_sha256(pack.folder / "pack.yaml"),
        "tree": bench.tree.digest,
        "needs": [need.digest for need in bench.needs],
        "lane": request.lane,
        "threads": request.threads,
        "timeout": request.timeout_s,
        "census": request.census,
        "versions": stamp.versions if stamp else {},
        "machine": stamp.host.model_dump(exclude={"alias"}) if stamp else {},
        "engine": engine.digest(),
        "ours": [file_sha256(Path(__file__)), file_sha256(Path(str(hand.__file__)))],
    }
    return Ground(run, bench, key)


def _hold(run: Run) -> None:
    """CannotTestHere where the pack itself cannot be tested, Unproved where its fix does not hold."""
    ruling, pack = run.ruling, run.pack.id
    if ruling.verdict is Verdict.UNTESTABLE:
        raise CannotTestHere(f"{pack}: {ruling.reason}", ruling.remedy)
    if ruling.verdict is not Verdict.REPRODUCED_AND_FIXED:
        said = f"{pack} without a mistake: {ruling.verdict.value}: {ruling.reason}"
        raise Unproved(said, f"python -m reproducers.run {pack} --lane {run.request.lane}; no mutant was tried")


def excusing(lane: Lane, candidate: Candidate) -> Lane:
    """The lane with what a mistake makes of its unreached lines in their place, where it changes no others.

    Such a line still cannot run, and that it does not is no check's merit.
    """
    rows = [entry for entry in lane.unreached if entry.line in candidate.lost]
    if not rows or candidate.lost != {entry.line for entry in rows}:
        return lane
    more = [entry.model_copy(update={"line": line}) for entry in rows for line in sorted(candidate.made)]
    kept = [entry for entry in lane.unreached if entry not in rows]
    return lane.model_copy(update={"unreached": [*kept, *more]})


def attempt(ground: Ground, candidate: Candidate) -> Run:
    """A run of the pack with a mutant's patch, its patched arm in a store that is gone afterwards.

    The arm of a generated mutant is ended at its first failing check.
    """
    real = ground.bench.store.root
    with scratch_folder(real / "mutants") as root, temporary() as scratch:
        for name in COMPILERS:
            (real / "cache" / name).mkdir(parents=True, exist_ok=True)
            (root / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "cache" / name).symlink_to(real / "cache" / name)
        # a hand-written mutant names the check that must see it, which need not be the first that does
        until = hand.failing(ground.run.pristine[-1]) if candidate.how == "generated" else None
        lane = excusing(ground.bench.lane, candidate)
        bench = dataclasses.replace(ground.bench, store=Store(root), lane=lane, until=until)
        return with_patch_of(with_patch(ground.run.pack, candidate.text, Path(scratch)), ground.run, bench)


def outcome(ground: Ground, candidate: Candidate) -> Outcome:
    """What becomes of a mutant, from the store where it is known; what could not be tested is not kept."""
    path = ground.bench.store.root / "cache" / "mutants" / f"{json_sha256([ground.key, candidate.sha256])}.json"
    with contextlib.suppress(OSError, ValidationError):
        return Outcome.model_validate_json(path.read_bytes())
    run = attempt(ground, candidate)
    made = [check.name for arm in run.patched[-1:] for check in arm.checks if check.state != "skipped"]
    result = Outcome(
        verdict=run.ruling.verdict, reason=run.ruling.reason, caught_by=_once(hand.caught(run)), checks=made
    )
    if result.verdict is not Verdict.UNTESTABLE:
        write_atomic(path, json.dumps(result.model_dump(mode="json")).encode())
    return result


def _once(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def try_all(
    ground: Ground,
    candidates: list[Candidate],
    workers: int,
    explained: dict[str, str],
    ended: Ended,
    within_s: float | None = None,
) -> list[tuple[Tried, Outcome]]:
    """Each mutant's result, in order; ``ended(number so far, result, seconds since the start)`` as they come.

    First of all comes the pack's own census, on which no mutant's arm waits. None is begun once ``within_s`` seconds
    are over, so that the results are those of the first ones. An interrupt ends every arm before it propagates.

    CannotTestHere and Unproved where the pack's own census cannot be taken, or does not hold.
    """
    started = time.monotonic()

    def control() -> tuple[Tried, Outcome] | None:
        if ground.run.request.census:
            _hold(with_census_of(ground.run, ground.bench))
        return None

    def attempted(candidate: Candidate) -> tuple[Tried, Outcome] | None:
        if within_s is not None and time.monotonic() - started > within_s:
            return None
        result = outcome(ground, candidate)
        tried = Tried(
            name=candidate.name,
            how=candidate.how,
            where=candidate.where,
            patch=candidate.sha256,
            source=candidate.source,
            verdict=result.verdict,
            reason=result.reason,
            caught_by=result.caught_by,
            explained=candidate.name in explained,
        )
        return tried, result

    pool = concurrent.futures.ThreadPoolExecutor(workers)
    try:
        own, number = pool.submit(control), 0
        futures = [pool.submit(attempted, candidate) for candidate in candidates]
        for future in concurrent.futures.as_completed([own, *futures]):
            if result := future.result():
                number += 1
                ended(number, result[0], time.monotonic() - started)
        return [result for future in futures if (result := future.result())]
    except PatchlaneError:  # the next pack may still be tried: arms that have begun end by themselves
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        kill_children()
        raise
    finally:
        pool.shutdown(wait=True)
