"""A hunt on one release: child processes started as arms are, what they tell as it comes, and what is left."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import temporary
from reproducers.record.schema import ROOT, load_needs, load_releases
from reproducers.studies.hunt import corpus
from reproducers.studies.hunt.targets import UPSTREAMS, Upstream
from reproducers.trial.arms import ArmSpec, kill_children, run_arm
from reproducers.upstream import index, pins
from reproducers.upstream.store import Store, Tree

CHILD = Path(__file__).with_name("child.py")
MEMORY_GIB = 6.0
POLL_S = 0.5
LATE_S = 120.0  # after the deadline, for the case at hand and a shrink
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """``release``: None for the newest that packs/releases.yaml lists. ``only``: one target."""

    distribution: str
    minutes: float
    release: str | None = None
    seed: int = 0
    only: str | None = None
    jobs: int = 2


@dataclass
class Found:
    """What a hunt has. ``dismissed``: {why: failures that were not confirmed}. ``interrupted``: by Ctrl-C."""

    release: str
    tree: Path
    alarms: list[corpus.Alarm] = field(default_factory=list)
    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    absent: dict[str, str] = field(default_factory=dict)
    dismissed: Counter[str] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def compared(self) -> int:
        """Cases that the functions took."""
        return self.cases.total() - self.refused.total()


def upstream(distribution: str) -> Upstream:
    """The upstream of a distribution. Raises PatchlaneError for one without targets."""
    if distribution not in UPSTREAMS:
        raise PatchlaneError(f"{distribution} has no targets", f"one of {', '.join(UPSTREAMS)}")
    return UPSTREAMS[distribution]


def require_known(request: Request, found: Found) -> None:
    """Raise PatchlaneError where ``only`` names no target: nobody has tried it, nor missed it."""
    if request.only is None or request.only in {*found.cases, *found.absent} or found.died or found.interrupted:
        return
    names = [target.name for target in importlib.import_module(upstream(request.distribution).targets).TARGETS]
    if request.only not in names:
        raise PatchlaneError(
            f"--only {request.only}: no function of {request.distribution}'s", f"one of {', '.join(names)}"
        )


def tree_of(store: Store, distribution: str, release: str | None, packs: Path) -> tuple[str, Tree]:
    """(release, its tree in the store): the newest listed one, or one that the list or the package index has."""
    listed = load_releases(packs).get(distribution, {})
    if release is None:
        if not listed:
            raise PatchlaneError(
                f"packs/releases.yaml lists no release of {distribution}",
                f"--release X, or python -m reproducers.release {distribution} X",
            )
        release = max(listed, key=Version)
    if release not in listed and store.offline:
        raise CannotTestHere(f"{distribution} {release} is not listed, and the run is offline", index.ONLINE)
    files = listed[release].artifacts if release in listed else index.release_files(distribution, release)
    return release, store.release_tree(distribution, release, *pins.choose(files))


def told(found: Found) -> list[str]:
    """The closing lines: what was tried, what was not, and why failures are no alarms."""
    never = [name for name in found.cases if found.cases[name] == found.refused[name]]
    lines = [f"{found.cases.total()} cases of {len(found.cases)} functions, {found.refused.total()} refused by them"]
    lines += [f"not in this release: {', '.join(sorted(found.absent))}"] if found.absent else []
    lines += [f"took no case: {', '.join(sorted(never))}"] if never else []
    lines += [f"not confirmed, {why}: {count}" for why, count in sorted(found.dismissed.items())]
    lines += [f"interrupted: {found.release} was not hunted for all of its time"] if found.interrupted else []
    return [*lines, f"{len(found.alarms)} alarms in {len({alarm.target for alarm in found.alarms})} functions"]


class Session:
    """The children of one hunt and what they told."""

    def __init__(self, request: Request, store: Store, folder: Path, say: Say) -> None:
        self.request, self.store, self.folder, self.say = request, store, folder, say
        self.of = upstream(request.distribution)
        release, self.tree = tree_of(store, request.distribution, request.release, ROOT / "packs")
        sets = {name: load_needs(ROOT / "packs")[name] for name in self.of.needs}
        self.needs = [need.path for need in pins.need_trees(store, sets, "cpu")]
        self.found = Found(release, self.tree.path)
        self.kept = [alarm.model_dump(mode="json") for alarm in corpus.kept(folder, request.distribution)]
        self.known = set[tuple[str, str, str]]()
        self._lock = threading.Lock()

    def run(self) -> Found:
        """Hunt until the minutes are over, or Ctrl-C."""
        deadline = time.time() + 60 * self.request.minutes
        jobs = 1 if self.request.only else self.request.jobs
        with temporary() as scratch:
            threads = [
                threading.Thread(target=self._job, args=(number, jobs, deadline, Path(scratch)), daemon=True)
                for number in range(jobs)
            ]
            for thread in threads:
                thread.start()
            try:
                while any(thread.is_alive() for thread in threads):
                    time.sleep(POLL_S)
            except KeyboardInterrupt:
                self.found.interrupted = True
                kill_children()
            for thread in threads:
                thread.join(LATE_S)
        return self.found

    def _job(self, number: int, jobs: int, deadline: float, scratch: Path) -> None:
        """One child after another until the time is over: a child that a function kills is followed by another."""
        skip = list[str]()
        kept = self.kept
        for attempt in range(100):
            rows = scratch / f"{number}_{attempt}.jsonl"
            rows.touch()
            task = {
                "targets": self.of.targets,
                "only": self.request.only,
                "skip": skip,
                "known": [*self.known],
                "corpus": kept,
                "number": number,
                "jobs": jobs,
                "seed": self.request.seed + attempt,
                "seconds": max(1.0, deadline - time.time()),
                "rows": str(rows),
            }
            reader = _Reader(rows, self._row)
            reader.start()
            try:
                arm = run_arm(self._spec(json.dumps(task), deadline), lambda line: None)
            except KeyboardInterrupt:
                return
            finally:
                reader.stop()
            if reader.ended or time.time() > deadline:
                return
            kept = []
            if reader.last is None:
                raise_why = next((line for line in reversed(arm.output) if line.strip()), arm.reason)
                self._say_died("the start", raise_why)
                return
            self._say_died(reader.last, arm.reason)
            skip.append(reader.last)

    def _spec(self, label: str, deadline: float) -> ArmSpec:
        return ArmSpec(
            reproducer=CHILD,
            tree=self.tree.path,
            needs=self.needs,
            lane="cpu",
            seed=0,
            label=label,
            watch={},
            timeout_s=max(60.0, deadline - time.time() + LATE_S),
            memory_gib=MEMORY_GIB,
            cache=self.store.root / "cache",
            installed=False,
        )

    def _say_died(self, where: str, reason: str) -> None:
        with self._lock:
            self.found.died.append(f"{where}: {reason}")
        self.say(f"a child ended in {where}: {reason}")

    def _row(self, row: dict[str, Any]) -> None:
        """Take one row of a child."""
        with self._lock:
            if "absent" in row:
                self.found.absent[row["absent"]] = row["why"]
            elif "tried" in row:
                self.found.cases[row["tried"]] += row.get("cases", 0)
                self.found.refused[row["tried"]] += row.get("refused", 0)
                self.say(f"{row['tried']}: {row.get('cases', 0)} cases in {row['seconds']} s")
            elif "dismissed" in row:
                self.found.dismissed[row["why"]] += 1
            elif "alarm" in row:
                alarm = corpus.Alarm(
                    distribution=self.request.distribution,
                    release=self.found.release,
                    seed=self.request.seed,
                    **row["alarm"],
                )
                self.known |= {(alarm.target, alarm.relation, what) for what in (alarm.what, *alarm.also)}
                self.found.alarms.append(alarm)
                corpus.keep(self.folder, alarm)
                self.say(f"ALARM {alarm.line()}")


class _Reader(threading.Thread):
    """Takes a child's rows as they come. ``last``: the target at hand; ``ended``: whether the child came to its end."""

    def __init__(self, path: Path, take: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(daemon=True)
        self.path, self.take = path, take
        self.last: str | None = None
        self.ended = False
        self._over = threading.Event()

    def run(self) -> None:
        with self.path.open(encoding="utf-8") as rows:
            rest, over = "", False
            while not over:
                over = self._over.wait(POLL_S)
                *lines, rest = (rest + rows.read()).split("\n")
                for line in lines:
                    row = json.loads(line)
                    self.last, self.ended = row.get("began", self.last), "ended" in row or self.ended
                    self.take(row)

    def stop(self) -> None:
        """Read what is left and end."""
        self._over.set()
        self.join()
