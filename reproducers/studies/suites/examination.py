"""A pack's upstream tests on both trees: which files, each in its own process, differences run again alone."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.host.facts import getting, gpus
from reproducers.record.schema import Lane, Need, Pack, Pin, load_needs
from reproducers.record.upstream_tests import LISTED, Compare, FileRun, Listed, listed
from reproducers.studies.suites.bench import Bench, Told, run_file
from reproducers.studies.suites.comparing import compared, differs, ruling
from reproducers.studies.suites.suite import tests_tree
from reproducers.upstream import patching, pins
from reproducers.upstream.pins import Source
from reproducers.upstream.store import Seal, Store, Tree

ALONE = 8  # tests of a file that are run again each alone; where more differ, together but without the others
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What the command line asked of every pack."""

    lane: str = "cpu"
    at: str = "live"
    upstream: Path | None = None
    tests: tuple[str, ...] = ()
    timeout_s: float | None = None
    threads: int = 1


@dataclass
class Examination:
    """All that was observed; the record is made from this and nothing else."""

    pack: Pack
    asked: Asked
    at: str
    pin: Pin
    tree: Tree
    patched: Tree
    patch: Path
    tests: Tree
    needs: list[Tree]
    files: list[Listed]
    beside: dict[str, Tree] = field(default_factory=dict)  # {set of needs.yaml: its tree}, those that files list
    runs: list[FileRun] = field(default_factory=list)
    outcomes: list[Compare] = field(default_factory=list)
    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))

    @property
    def ruling(self) -> tuple[Verdict | None, str]:
        return ruling(self.outcomes, self.runs)


class Examiner:
    """Runs packs one after another; a file that two packs share is run once on the pristine tree."""

    def __init__(self, store: Store, asked: Asked, redact: Callable[[str], str], say: Say) -> None:
        self.store, self.asked, self.redact, self.say = store, asked, redact, say
        self.known: dict[tuple[str, ...], Told] = {}

    def examine(self, pack: Pack) -> Examination:
        """Run the pack's tests. CannotTestHere or PatchlaneError where they cannot be started at all."""
        _require(self.asked.lane)
        seen = self._prepared(pack)
        strip = patching.strip_for(seen.tree.path, pack.upstream.source_root)
        seal = Seal({seen.tree, seen.patched, seen.tests, *seen.needs, *seen.beside.values()})
        pristine = self._bench(seen, seen.tree, patching.hunks(seen.patch, strip, after=False))
        patched = self._bench(seen, seen.patched, patching.hunks(seen.patch, strip, after=True))
        for file in seen.files:
            more = [seen.beside[name] for name in self._needs(file)]
            of, to = (dataclasses.replace(bench, needs=[*bench.needs, *more]) for bench in (pristine, patched))
            before = self._pristine(seen, of, file)
            self._note(seen, file, "pristine", before)
            after = run_file(to, file)
            self._note(seen, file, "patched", after)
            for test in _tests(file, before, after):
                sides = before.side(test), after.side(test)
                word = compared(*sides)
                seen.outcomes.append(Compare(test=test, pristine=sides[0], patched=sides[1], compared=word))
            self._repeat(seen, file, of, to)
            if broken := seal.broken():
                raise CannotTestHere(f"{file.path} changed the store's tree of {broken.origin}", "run again")
        return seen

    def _prepared(self, pack: Pack) -> Examination:
        asked = self.asked
        at = pins.settle(pack, asked.at, asked.upstream)
        pin = pins.resolve(self.store, pack, at)
        patch = pack.patch_at(at)
        if patch is None:
            raise PatchlaneError(f"{pack.id} has no patch for {at}", "python -m reproducers.run --list")
        if pin.sha is None:
            raise CannotTestHere(
                f"{pack.id}: {at} names no commit, from which its tests would come",
                "add its sha to packs/releases.yaml",
            )
        tests = tests_tree(self.store, pack, pin.sha, asked.upstream)
        tree = pins.pin_tree(self.store, pack, pin, Source(upstream=None if pin.release else asked.upstream))
        strip = patching.strip_for(tree.path, pack.upstream.source_root)
        patched = patching.patched_tree(self.store, tree, patch, strip, pack.number, pack.upstream.source_root)
        needs = pins.need_trees(self.store, pins.need_sets(pack, pin.needs), asked.lane)
        files = _files(pack, asked, tests, patch)
        sets = {name: _set(pack, name) for file in files for name in self._needs(file)}
        beside = dict(zip(sets, pins.need_trees(self.store, sets, asked.lane), strict=True))
        return Examination(pack, asked, at, pin, tree, patched, patch, tests, needs, files, beside)

    def _needs(self, file: Listed) -> list[str]:
        """The sets that the file has beside those of the pin."""
        return file.cuda_needs if self.asked.lane == "cuda" else []

    def _bench(self, seen: Examination, tree: Tree, hunks: list[patching.Hunk]) -> Bench:
        pack, lane = seen.pack, self.asked.lane
        root = patching.import_root(tree.path, pack.upstream.source_root)
        limits = pack.lanes.get(lane, Lane())  # type: ignore[call-overload]
        if self.asked.timeout_s:
            limits = limits.model_copy(update={"timeout_s": self.asked.timeout_s})
        inside = (tree.path / hunk.path for hunk in hunks)
        return Bench(
            root=root,
            package=pack.upstream.package,
            tests=seen.tests,
            needs=seen.needs,
            patched=sorted({path.relative_to(root).as_posix() for path in inside if path.is_relative_to(root)}),
            lane=lane,
            limits=limits,
            store=self.store,
            threads=self.asked.threads,
            source_root=pack.upstream.source_root,
            redact=self.redact,
        )

    def _pristine(self, seen: Examination, bench: Bench, file: Listed) -> Told:
        """The file on the pristine tree, from an earlier pack's run where all that decides is the same."""
        needs = "\n".join(need.digest for need in bench.needs)
        key = (seen.tree.digest, seen.tests.digest, needs, file.model_dump_json())
        if key not in self.known or self.known[key].ended != "finished":  # else with another pack's limits
            self.known[key] = run_file(dataclasses.replace(bench, patched=_every(bench)), file)
        told = self.known[key]
        return dataclasses.replace(told, imported=sorted(set(told.imported) & set(bench.patched)))

    def _note(self, seen: Examination, file: Listed, arm: str, told: Told) -> None:
        run = FileRun.model_validate(
            {
                **file.model_dump(include={"path", "environment", "select"}),
                "arm": arm,
                "tests": len(told.sides),
                "ended": told.ended,
                "reason": told.reason,
                "imported": told.imported,
                "stand_ins": told.stand_ins,
                "needs": self._needs(file),
                "seconds": round(told.seconds, 2),
                "peak_gib": round(told.peak_gib, 3),
            }
        )
        seen.runs.append(run)
        self.say(f"{seen.pack.id} {arm} {file.path}: {_told(told)} in {told.seconds:.1f} s")

    def _repeat(self, seen: Examination, file: Listed, pristine: Bench, patched: Bench) -> None:
        """Run what passed on one tree and failed on the other again, alone, on both."""
        suspects = [
            (place, row)
            for place, row in enumerate(seen.outcomes)
            if row.again is None and differs(row.pristine, row.patched) and row.test.partition("::")[0] == file.path
        ]
        groups = [[suspect] for suspect in suspects] if len(suspects) <= ALONE else [suspects]
        for group in groups:
            names = [row.test for _, row in group]
            if not names:
                continue
            before, after = (run_file(bench, file, names) for bench in (pristine, patched))
            for place, row in group:
                again = before.side(row.test), after.side(row.test)
                word = compared(row.pristine, row.patched, again)
                seen.outcomes[place] = row.model_copy(update={"again": again, "compared": word})
                said = f"pristine {again[0].outcome}, patched {again[1].outcome}"
                self.say(f"{seen.pack.id} again, alone: {row.test}: {said}: {word}")


def _set(pack: Pack, name: str) -> list[Need]:
    known = load_needs(pack.folder.parent)
    if name not in known:
        raise PatchlaneError(f"{LISTED}: needs.yaml has no set {name}", f"correct packs/{LISTED}")
    return known[name]


def _every(bench: Bench) -> list[str]:
    """All Python files of the tree, for a run whose imports several packs look at."""
    return [path.relative_to(bench.root).as_posix() for path in (bench.root / bench.package).rglob("*.py")]


def _told(told: Told) -> str:
    sides = [side.outcome for side in told.sides.values()]
    counts = ", ".join(f"{sides.count(word)} {word}" for word in dict.fromkeys(sides))
    whole = f"{told.whole.outcome}: {told.whole.error}" if told.whole and not sides else ""
    stopped = f"; {told.ended}: {told.reason}" if told.ended != "finished" else ""
    empty = f"; empty modules stand in for {', '.join(told.stand_ins)}" if told.stand_ins else ""
    return (counts or whole or "no tests") + stopped + empty


def _tests(file: Listed, before: Told, after: Told) -> list[str]:
    """All tests that either tree collected; the file itself where none did."""
    return list(dict.fromkeys([*before.sides, *after.sides])) or [file.path]


def _require(lane: str) -> None:
    if importlib.util.find_spec("pytest") is None:
        raise CannotTestHere("upstream's tests need pytest", getting("pytest"))
    if lane == "cuda" and not gpus():
        raise CannotTestHere("the cuda lane needs a GPU, found none", "run it on such a host, or --lane cpu")


def _files(pack: Pack, asked: Asked, tests: Tree, patch: Path) -> list[Listed]:
    """The files asked for, those that are listed for pack and lane, or those named after a file of the patch."""
    all_listed = listed(pack.folder.parent).get(pack.number, [])
    known = {file.path: file for file in all_listed if asked.lane in file.lanes}
    if all_listed and not known and not asked.tests:
        raise CannotTestHere(f"{pack.id}: {LISTED} has no file for the {asked.lane} lane", "--tests PATH")
    chosen = [known.get(path) or Listed(path=path) for path in asked.tests] or list(known.values())
    chosen = chosen or [Listed(path=path) for path in _named_after(tests.path, patch)]
    if not chosen:
        raise CannotTestHere(f"{pack.id}: no test file is named after a patched one", f"list it in packs/{LISTED}")
    for file in chosen:
        if not (tests.path / file.path).is_file():
            raise PatchlaneError(f"{pack.id}: {tests.origin} has no {file.path}", f"correct packs/{LISTED} or --tests")
    return chosen


def _named_after(root: Path, patch: Path) -> Iterator[str]:
    """Test files of the repository that have the name of a file that the patch changes."""
    stems = {PurePosixPath(file.path).stem for file in patching.files(patch)} - {"__init__"}
    wanted = {form.format(stem) for stem in stems for form in ("test_{}.py", "{}_test.py")}
    yield from sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py") if path.name in wanted)
