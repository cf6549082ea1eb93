"""Run one pack at one pin in one lane: both arms, repeated, and their verdict."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.host.facts import getting
from reproducers.probe.stamp import gpus
from reproducers.probe.watch import Ranges
from reproducers.record.receipt import ArmName, Census, Check, Executed, Facts
from reproducers.record.schema import Lane, Pack, Pin
from reproducers.trial import census, rulings, statements
from reproducers.trial.arms import ArmResult, ArmSpec, Wanted, run_arm
from reproducers.trial.rulings import Ruling
from reproducers.upstream import fitting, patching, pins
from reproducers.upstream.index import NoSuchRelease
from reproducers.upstream.patching import Applicability, ApplyClass
from reproducers.upstream.pins import Source
from reproducers.upstream.store import Seal, Store, Tree

Say = Callable[[str, str], None]  # (arm name, line)
REMEDIES = {  # {option of the probe: the step to take with reproducers.run}
    "--tree DIR": "--upstream DIR, a checkout or an unpacked release of the pack's upstream",
    "--needs DIR": "add what is missing to the pin's needs, in pack.yaml and packs/needs.yaml",
}


class Misused(PatchlaneError):
    """A fault of the reproducer itself, with file and line."""


@dataclass(frozen=True)
class Request:
    """The command line's request to every pack.

    ``at`` "upstream" is the folder ``upstream`` as it stands. Any other tree is taken from the clone ``upstream``, if
    one is given.
    """

    at: str = "live"
    lane: str = "cpu"
    arm: str = "both"
    repeats: int = 1
    upstream: Path | None = None
    allow_dirty: bool = False
    threads: int = 1
    timeout_s: float | None = None  # processor seconds an arm may use; None: the lane's
    gpu: str | None = None  # the only GPU that arms see; None: every GPU of the runner
    build: str | None = None  # the command that builds the commit under test; None: it is tested as it is
    census: bool = False  # a fix that all checks find healthy is also asked what else it changes
    watch: Callable[[Tree, Ranges], Ranges] | None = None  # more lines to watch than those that the patch adds


@dataclass
class PristineCensus:
    """The pristine tree's census, which is taken once: of all patches that are tried beside it the first one waits."""

    facts: Facts | None = None
    cut: str = ""  # why it did not go to its end
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """A copy has a lock of its own, for locks cannot be copied."""
        return {"facts": self.facts, "cut": self.cut, "lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, lock=threading.Lock())


@dataclass
class Run:
    """All observations of one pack's run; its receipt is written from nothing else.

    Once the tree is known, ``request.at`` is the tree's own name: a pin, a release, a SHA or "upstream".
    """

    pack: Pack
    request: Request
    pin: Pin | None = None
    tree: Tree | None = None
    artifact: str | None = None
    ruling: Ruling = field(default_factory=lambda: Ruling(Verdict.UNTESTABLE, "not run"))
    fixed_tree: Tree | None = None
    patch: Applicability | None = None
    pristine: list[ArmResult] = field(default_factory=list)
    patched: list[ArmResult] = field(default_factory=list)
    fixed: list[ArmResult] = field(default_factory=list)
    census: Census | None = None
    beside: PristineCensus = field(default_factory=PristineCensus)
    hunks: dict[str, bool] = field(default_factory=dict)
    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    log: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)  # lines of the patch that a reader has to know
    mistyped: bool = False  # there is no such release: nothing was tried, so there is nothing to keep

    @property
    def patch_file(self) -> Path | None:
        """The patch for the requested tree; None without one."""
        return self.pack.patch_at(self.request.at)

    @property
    def arms(self) -> dict[ArmName, list[ArmResult]]:
        return {"pristine": self.pristine, "patched": self.patched, "fixed": self.fixed}

    @property
    def sentinels(self) -> list[str]:
        """The sentinels that the arms and their verdict earn."""
        arms = {name: [result.arm() for result in results] for name, results in self.arms.items()}
        return rulings.sentinels(self.pack.kind, self.ruling.verdict, arms)


def expected(pack: Pack, request: Request) -> set[Verdict]:
    """The verdicts that do not contradict the pack's claim for this pin and arm.

    A pack claims nothing of a folder or commit without a pin: there the bug, its absence, and code too different for
    the patch are all expected. A failure of the reproducer or the patch is not.
    """
    if _healthy(pack, request.at):
        return {Verdict.FIXED_UPSTREAM}
    if request.arm == "patched":
        wanted = {Verdict.INCONCLUSIVE}
    elif request.arm == "pristine" or pack.patch_at(request.at) is None:
        wanted = {Verdict.REPRODUCED}
    else:
        wanted = {Verdict.REPRODUCED_AND_FIXED}
    claimed = pack.pin_name(request.at) or not (request.at == pins.UPSTREAM or pins.SHA.fullmatch(request.at))
    return wanted if claimed else wanted | {Verdict.FIXED_UPSTREAM, Verdict.PATCH_STALE}


def _healthy(pack: Pack, at: str) -> bool:
    """Whether the pack claims the tree free of the bug: a healthy pin, or a release after the fixed one."""
    live, fixed = pack.pins["live"].release, pack.pins["fixed"].release if "fixed" in pack.pins else None
    if pack.healthy_at(at) or fixed is None or pack.pin_name(at) or pins.SHA.fullmatch(at):
        return pack.healthy_at(at)
    try:
        return Version(at) > Version(fixed) and (live is None or Version(fixed) > Version(live))
    except InvalidVersion:
        return False


@dataclass(frozen=True)
class Bench:
    """The place of arms: one pin's tree with its needs, in one lane of this host."""

    lane: Lane
    label: str
    tree: Tree
    needs: list[Tree]
    store: Store
    tell: Say
    until: Callable[[Check], bool] | None = None  # patched arms are ended at the first check of which this holds


def execute(pack: Pack, request: Request, store: Store, say: Say) -> Run:
    """Run the pack; ``say`` gets each line. Missing capabilities give UNTESTABLE, store and usage errors propagate.

    Raises Misused for a fault of the reproducer, of which no tree is to blame.
    """
    request = dataclasses.replace(request, at=pins.settle(pack, request.at, request.upstream))
    run = Run(pack, request)

    def tell(arm: str, line: str) -> None:
        run.log.append(f"[{arm}] {line}")
        try:
            say(arm, line)
        except (BrokenPipeError, SystemExit):  # rich raises them for a closed pipe: nobody reads on, so interrupt
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    try:
        lane = _lane(pack, request)
        bench = _bench(run, _subject(run, store), run.pin, lane, store, tell)
        if pack.kind == "guard" and run.request.at == "live" and request.arm == "both":
            fixed = pack.pins["fixed"]
            _guard(run, bench, _bench(run, pins.pin_tree(store, pack, fixed), fixed, lane, store, tell))
        else:
            _arms(run, bench)
    except CannotTestHere as error:
        run.ruling = Ruling(Verdict.UNTESTABLE, error.what, error.remedy)
        run.mistyped = isinstance(error, NoSuchRelease)
    for option, remedy in REMEDIES.items():
        if option in run.ruling.remedy:
            run.ruling = run.ruling._replace(remedy=remedy)
    for sentinel in run.sentinels:
        if sentinel != "BUG_REPRODUCED":  # the arm printed this itself
            tell("verdict", f"{sentinel}: {run.ruling.reason}")
    tell("verdict", f"{run.ruling.verdict.value}: {run.ruling.reason}")
    return run


def _subject(run: Run, store: Store) -> Tree:
    """The requested tree; sets the run's tree, pin and ``at`` to it."""
    asked = run.request
    if asked.build and asked.arm != "pristine":
        raise PatchlaneError("--build has no patched arm: what a patch changes was built before", "--arm pristine")
    source = Source(asked.upstream, asked.allow_dirty, asked.build)
    at, run.pin, tree, run.artifact = pins.subject(store, run.pack, asked.at, source)
    run.request, run.tree = dataclasses.replace(run.request, at=at), tree
    return tree


def _bench(run: Run, tree: Tree, pin: Pin | None, lane: Lane, store: Store, tell: Say) -> Bench:
    pack = run.pack
    sets, said = fitting.need_sets(pack, pin, tree, store.offline)
    for line in said:
        tell("needs", line)
    needs = pins.need_trees(store, sets, run.request.lane)
    label = str(tree.origin.of(pack.upstream.distribution))
    return Bench(lane, label, tree, needs, store, tell)


def bench_of(run: Run, store: Store, tell: Say) -> Bench:
    """Where the arms of a run, which got its tree, can run again. CannotTestHere as ``execute`` has it."""
    assert run.tree is not None
    return _bench(run, run.tree, run.pin, _lane(run.pack, run.request), store, tell)


def with_patch_of(pack: Pack, run: Run, bench: Bench) -> Run:
    """A run of ``pack``, which differs by its patch: a new patched arm beside the pristine one that ``run`` had."""
    again = dataclasses.replace(run, pack=pack, patch=None, patched=[], hunks={}, log=[], census=None)
    strip = patching.strip_for(bench.tree.path, pack.upstream.source_root)
    try:
        again.ruling = _patched(again, bench, strip, seed=0)
    except Misused as error:  # the pack's own arms had none: the other patch brought it
        again.ruling = Ruling(Verdict.DIFFERENT_FAILURE, f"patched: {error.what}", error.remedy)
    return again


def _lane(pack: Pack, request: Request) -> Lane:
    """The requested lane. Raises CannotTestHere if the pack lacks it, or this host lacks its requirements."""
    if request.lane not in pack.lanes:
        why = pack.no_lane.get(request.lane, "the pack has none")  # type: ignore[call-overload]
        raise CannotTestHere(f"{pack.id} has no {request.lane} lane: {why}")
    lane = pack.lanes[request.lane]  # type: ignore[index]
    absent = [name for name in lane.requires if importlib.util.find_spec(name) is None]
    if absent:
        remedy = " && ".join(dict.fromkeys(map(getting, absent)))
        raise CannotTestHere(f"not importable here: {', '.join(absent)}", remedy)
    if lane.gpus:
        usable = [gpu for gpu in gpus() if lane.capability in (None, gpu["capability"])]
        if len(usable) < lane.gpus:
            wanted = f"{lane.gpus} GPU of compute capability {lane.capability or 'any'}"
            raise CannotTestHere(
                f"the {request.lane} lane needs {wanted}, found {len(usable)}", "run it on such a host"
            )
    return lane


def _guard(run: Run, broken: Bench, fixed: Bench) -> None:
    """Run a guard's broken and fixed release, repeat by repeat."""
    repeats, run.fixed_tree = list[Ruling](), fixed.tree
    for seed in range(run.request.repeats):
        run.pristine.append(_arm(run, broken, [], "pristine", seed))
        run.fixed.append(_arm(run, fixed, [], "fixed", seed))
        repeats.append(rulings.rule_guard(run.pristine[-1].arm(), run.fixed[-1].arm()))
    run.ruling = _agree(repeats)


def _arms(run: Run, bench: Bench) -> None:
    """Fill ``run`` from the requested arms; each repeat has its own seed, and all must agree."""
    request, patch = run.request, run.patch_file
    strip = patching.strip_for(bench.tree.path, run.pack.upstream.source_root)
    repeats: list[Ruling] = []
    for seed in range(request.repeats):
        if request.arm != "patched":
            before = patching.hunks(patch, strip, after=False) if patch else []
            run.pristine.append(_arm(run, bench, before, "pristine", seed))
            repeats.append(rulings.rule_pristine(run.pristine[-1].arm()))
            if request.arm == "pristine" or not patch or repeats[-1].verdict is not Verdict.REPRODUCED:
                continue
            repeats.pop()
        if patch:
            patching.refuse_empty(patch)
        repeats.append(_patched(run, bench, strip, seed))
    run.ruling = _agree(repeats)


def _patched(run: Run, bench: Bench, strip: int, seed: int) -> Ruling:
    patch = run.patch_file
    if patch is None:
        raise CannotTestHere(f"{run.pack.id} has no patch for {run.request.at}", "--arm pristine")
    root = run.pack.upstream.source_root
    run.patch = patching.classify(bench.tree.path, patch, strip, root)
    if run.patch.kind is not ApplyClass.CLEAN:
        return Ruling(Verdict.PATCH_STALE, f"{run.patch.kind.value}: {run.patch.message}", run.patch.remedy)
    fixed = patching.patched_tree(bench.store, bench.tree, patch, strip, run.pack.number, root)
    after = statements.with_code(fixed.path, patch, strip)
    added, unreached = statements.added(fixed.path, patch, strip), bench.lane.unreached
    wanted = [statement for statement in added if not statements.excused(statement, unreached)]
    arm = _arm(run, dataclasses.replace(bench, tree=fixed), [*after, *wanted], "patched", seed)
    run.patched.append(arm)
    if arm.ended_at:
        return rulings.rule_ended(arm.ended_at)
    run.placed = [f"{row}, by which code learns where it runs: read why" for row in patching.placed(patch)]
    for row in run.placed:
        bench.tell("verdict", row)
    wrong = statements.at_odds(added, unreached, arm.executed)
    for name in wrong.values():
        bench.tell("verdict", f"not seen executing: {name}")
    missing = [*patching.unexecuted(after, arm.executed), *wrong.values()]
    for hunk in after:
        ran = hunk.name not in missing and not any(hunk.holds(statement) for statement in wrong)
        run.hunks[hunk.name] = run.hunks.get(hunk.name, True) and ran
    if run.request.arm == "patched":
        word = Verdict.FIX_INEFFECTIVE if arm.outcome == "bug" else Verdict.INCONCLUSIVE
        return Ruling(word, f"patched arm alone: {arm.outcome}: {arm.reason}", "run both arms")
    ruling = rulings.rule(run.pristine[-1].arm(), arm.arm(), missing, run.pack.kind)
    return _ruled(run, bench, fixed, ruling) if run.request.census and seed == 0 else ruling


def with_census_of(run: Run, bench: Bench) -> Run:
    """The run, of which both arms have run and nothing else, with its census."""
    again, patch = dataclasses.replace(run, log=[]), run.patch_file
    assert patch is not None
    root = run.pack.upstream.source_root
    strip = patching.strip_for(bench.tree.path, root)
    fixed = patching.patched_tree(bench.store, bench.tree, patch, strip, run.pack.number, root)
    again.ruling = _ruled(again, bench, fixed, run.ruling)
    return again


def _ruled(run: Run, bench: Bench, fixed: Tree, ruling: Ruling) -> Ruling:
    """The ruling with what else the patch changes, where all checks find it healthy."""
    patch = run.patch_file
    if patch is None or not rulings.is_healthy(ruling):
        return ruling
    strip = patching.strip_for(bench.tree.path, run.pack.upstream.source_root)
    touched = [patching.hunks(patch, strip, after=after) for after in (False, True)]
    run.census = _counted(run, bench, dataclasses.replace(bench, tree=fixed), touched)
    return rulings.rule_census(ruling, run.census)


def _counted(run: Run, bench: Bench, patched: Bench, touched: Sequence[Sequence[patching.Hunk]]) -> Census:
    """What the calls of both trees do beside the bug; the pristine tree's once for all patches.

    The patched one lies as in a checkout, where others lie as installed packages do, and has to be healthy there too.
    ``touched``: hunks of the pristine and of the patched tree, to which a file that the patch adds belongs alone.
    """
    before, hunks = touched[0], [*touched[0], *touched[1]]
    bench.tell("verdict", census.BEGUN)
    with run.beside.lock:
        if run.beside.facts is None:
            taken = _taken(run, bench, before, Wanted(), installed=True)
            run.beside.facts, ended = taken.census, taken.outcome in ("bug", "healthy")
            run.beside.cut = "" if ended else f"without the patch: {taken.reason}"
            run.log.append(census.line("pristine", run.beside.facts))
    facts = run.beside.facts
    wanted = Wanted({call: [*found] for call, found in facts.items()})
    after = _taken(run, patched, hunks, wanted, installed=False)
    run.log.append(census.line("patched", after.census))
    made = census.compare(facts, after.census, run.pack.meant)
    if after.outcome == "bug":  # what the census holds may be a check's; another arm, which takes none, decides
        after = _taken(run, patched, hunks, None, installed=False)
    if after.outcome == "bug":
        unlike = census.elsewhere(f"{after.outcome}: {after.reason}")
        made = made.model_copy(update={"differences": [*made.differences, unlike]})
    elif after.outcome != "healthy":
        made = made.model_copy(update={"cut": after.reason})
    elif run.beside.cut:
        made = made.model_copy(update={"cut": run.beside.cut})
    bench.tell("verdict", census.told(made))
    if lost := census.unmade(facts):
        bench.tell("verdict", f"{census.LINE}not made again: {', '.join(lost)}")
    return made


def _taken(run: Run, bench: Bench, hunks: Sequence[patching.Hunk], wanted: Wanted | None, installed: bool) -> ArmResult:
    spec = _spec(run, bench, hunks, seed=0)
    patience = census.PATIENCE if wanted else 1
    spec = dataclasses.replace(spec, census=wanted, installed=installed, timeout_s=patience * spec.timeout_s)
    return run_arm(spec, lambda line: None)


def _arm(run: Run, bench: Bench, hunks: Sequence[patching.Hunk], name: str, seed: int) -> ArmResult:
    pack, tree = run.pack, bench.tree
    spec = dataclasses.replace(_spec(run, bench, hunks, seed), until=bench.until if name == "patched" else None)
    seal = Seal({bench.tree, run.tree or bench.tree, *bench.needs})
    result = run_arm(spec, lambda line: bench.tell(name, line))
    if broken := seal.broken():
        result.outcome, result.sentinel, result.remedy = "different", None, ""
        result.reason = f"the {name} arm changed {seal.file} in the store's tree of {broken.origin}"
    _refuse_misuse(run, name, result)
    result.executed = _outside(result.executed, pack, tree)
    cost = f"{result.seconds:.1f} s, peak {result.peak_gib:.2f} GiB"
    bench.tell(name, f"-> {result.outcome} in {cost}: {result.reason}")
    return result


def _spec(run: Run, bench: Bench, hunks: Sequence[patching.Hunk], seed: int) -> ArmSpec:
    pack, tree, lane = run.pack, bench.tree, bench.lane
    watched = patching.ranges(hunks)
    if run.request.watch:
        watched = run.request.watch(tree, watched)
    return ArmSpec(
        reproducer=pack.reproducer,
        tree=patching.import_root(tree.path, pack.upstream.source_root),
        needs=[need.path for need in bench.needs],
        lane=run.request.lane,
        seed=seed,
        label=bench.label,
        watch=_inside(watched, pack, tree),
        timeout_s=run.request.timeout_s or lane.timeout_s,
        memory_gib=lane.memory_gib,
        cache=bench.store.root / "cache",
        threads=run.request.threads,
        gpu=run.request.gpu,
    )


def _prefix(pack: Pack, tree: Tree) -> str:
    root = patching.import_root(tree.path, pack.upstream.source_root)
    return "" if root == tree.path else os.path.relpath(root, tree.path) + "/"


def _refuse_misuse(run: Run, name: str, result: ArmResult) -> None:
    """Raise the reproducer's own fault, which says nothing of a tree.

    A value that the code under test gave is that code's fault where the pristine tree gave a right one.
    """
    fault = result.misused
    if fault and not (fault.measured and name != "pristine" and run.pristine):
        raise Misused(f"packs/{run.pack.folder.name}/{fault.said}", fault.remedy)


def _inside(ranges: Ranges, pack: Pack, tree: Tree) -> Ranges:
    """Paths relative to the import root, as the probe sees them."""
    prefix = _prefix(pack, tree)
    return {name.removeprefix(prefix): spans for name, spans in ranges.items()}


def _outside(executed: dict[str, Executed], pack: Pack, tree: Tree) -> dict[str, Executed]:
    """Paths relative to the tree, as the patch names them."""
    prefix = _prefix(pack, tree)
    return {prefix + name: lines for name, lines in executed.items()}


def _agree(repeats: list[Ruling]) -> Ruling:
    """One ruling for all repeats: the same verdict every time, or INCONCLUSIVE with the counts."""
    words = [ruling.verdict for ruling in repeats]
    if len(set(words)) == 1:
        reason = repeats[0].reason
        if len(words) > 1:
            reason += f" ({len(words)} of {len(words)} repeats; {confidence(len(words))})"
        return Ruling(words[0], reason, repeats[0].remedy)
    counts = ", ".join(f"{words.count(w)}x {w.value}" for w in dict.fromkeys(words))
    return Ruling(Verdict.INCONCLUSIVE, f"repeats disagree: {counts}", "raise -n, and look for a cause")


def confidence(repeats: int) -> str:
    """A sentence: the share of runs below which another outcome lies, with 95% confidence after agreeing repeats."""
    return f"95% confident that another outcome occurs in fewer than {1 - 0.05 ** (1 / repeats):.0%} of runs"
