"""One pack, one pin, one lane: both arms, repeated, and the verdict they give."""

from __future__ import annotations

import datetime
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reproducers import patching, pins
from reproducers.arms import ArmResult, ArmSpec, run_arm
from reproducers.errors import CannotTestHere
from reproducers.patching import Applicability, ApplyClass
from reproducers.schema import Lane, Pack, Pin
from reproducers.stamp import gpus
from reproducers.store import Store, Tree
from reproducers.verdicts import Ruling, Verdict, rule, rule_pristine
from reproducers.watch import Ranges

Say = Callable[[str, str], None]  # (arm name, line)


@dataclass(frozen=True)
class Request:
    """What the command line asked of every pack."""

    at: str = "live"
    lane: str = "cpu"
    arm: str = "both"
    repeats: int = 1
    upstream: Path | None = None
    allow_dirty: bool = False
    threads: int = 1


@dataclass
class Run:
    """Everything one pack's run observed; the receipt is written from this and nothing else."""

    pack: Pack
    request: Request
    pin: Pin | None = None
    tree: Tree | None = None
    ruling: Ruling = field(default_factory=lambda: Ruling(Verdict.UNTESTABLE, "not run"))
    patch: Applicability | None = None
    pristine: list[ArmResult] = field(default_factory=list)
    patched: list[ArmResult] = field(default_factory=list)
    hunks: dict[str, bool] = field(default_factory=dict)
    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    log: list[str] = field(default_factory=list)

    @property
    def sentinels(self) -> list[str]:
        """Sentinels earned: the pristine arm's own, and FIX_VALIDATED from the verdict of both arms."""
        own = [arm.record["sentinel"] for arm in self.pristine[:1] if arm.record.get("sentinel")]
        return own + (["FIX_VALIDATED"] if self.ruling.verdict is Verdict.REPRODUCED_AND_FIXED else [])


def expected(pack: Pack, request: Request) -> set[Verdict]:
    """The verdicts that do not contradict what the pack claims for this pin and arm."""
    at_fixed = request.at == "fixed" or ("fixed" in pack.pins and request.at in _names(pack.pins["fixed"]))
    if at_fixed:
        return {Verdict.FIXED_UPSTREAM}
    if request.arm == "patched":
        return {Verdict.INCONCLUSIVE}
    if request.arm == "pristine" or not pack.patch.is_file():
        return {Verdict.REPRODUCED}
    return {Verdict.REPRODUCED_AND_FIXED}


def _names(pin: Pin) -> set[str | None]:
    return {pin.release, pin.sha} - {None}


def execute(pack: Pack, request: Request, store: Store, say: Say) -> Run:
    """Run the pack. Missing capabilities give UNTESTABLE; store and usage errors propagate."""
    run = Run(pack, request)

    def tell(arm: str, line: str) -> None:
        run.log.append(f"[{arm}] {line}")
        say(arm, line)

    try:
        lane = _lane(pack, request)
        run.pin = pins.resolve(pack, request.at)
        run.tree = pins.pin_tree(
            store, pack, run.pin, {"upstream": request.upstream, "allow_dirty": request.allow_dirty}
        )
        needs = [t.path for t in pins.need_trees(store, pack, run.pin)]
        _arms(run, lane, needs, store, tell)
    except CannotTestHere as error:
        run.ruling = Ruling(Verdict.UNTESTABLE, error.what, error.remedy)
    for sentinel in run.sentinels[-1:]:
        if sentinel == "FIX_VALIDATED":
            tell("verdict", f"FIX_VALIDATED: {run.ruling.reason}")
    tell("verdict", f"{run.ruling.verdict.value}: {run.ruling.reason}")
    return run


def _lane(pack: Pack, request: Request) -> Lane:
    """The lane asked for; CannotTestHere when the pack lacks it or this host lacks what it requires."""
    if request.lane not in pack.lanes:
        why = pack.no_lane.get(request.lane, "the pack has none")  # type: ignore[call-overload]
        raise CannotTestHere(f"{pack.id} has no {request.lane} lane: {why}")
    lane = pack.lanes[request.lane]  # type: ignore[index]
    absent = [name for name in lane.requires if importlib.util.find_spec(name) is None]
    if absent:
        raise CannotTestHere(f"not importable here: {', '.join(absent)}", "make setup")
    if lane.gpus:
        found = [gpu for gpu in gpus() if lane.capability in (None, gpu["capability"])]
        if len(found) < lane.gpus:
            wanted = f"{lane.gpus} GPU of compute capability {lane.capability or 'any'}"
            raise CannotTestHere(f"the {request.lane} lane needs {wanted}, found {len(found)}", "run it on such a host")
    return lane


def _arms(run: Run, lane: Lane, needs: list[Path], store: Store, tell: Say) -> None:
    """Fill ``run`` from the arms asked for; each repeat has its own seed and all must agree."""
    pack, request, tree = run.pack, run.request, run.tree
    assert tree is not None
    strip = patching.strip_for(tree.path, pack.upstream.source_root)
    rulings: list[Ruling] = []
    for seed in range(request.repeats):
        if request.arm != "patched":
            before = patching.hunks(pack.patch, strip, after=False) if pack.patch.is_file() else []
            run.pristine.append(_arm(run, lane, tree, needs, before, "pristine", seed, store, tell))
            rulings.append(rule_pristine(run.pristine[-1].as_json()))
        wants_patch = request.arm == "patched" or (request.arm == "both" and pack.patch.is_file())
        if wants_patch and (request.arm == "patched" or rulings[-1].verdict is Verdict.REPRODUCED):
            rulings = rulings[: len(rulings) - (request.arm == "both")]
            rulings.append(_patched(run, lane, tree, needs, strip, seed, store, tell))
    run.ruling = _agree(rulings)


def _patched(
    run: Run, lane: Lane, tree: Tree, needs: list[Path], strip: int, seed: int, store: Store, tell: Say
) -> Ruling:
    pack = run.pack
    run.patch = patching.classify(tree.path, pack.patch, strip)
    if run.patch.kind is not ApplyClass.CLEAN:
        return Ruling(Verdict.PATCH_STALE, f"{run.patch.kind.value}: {run.patch.message}", run.patch.remedy)
    fixed = patching.patched_tree(store, tree, pack.patch, strip)
    after = patching.hunks(pack.patch, strip, after=True)
    arm = _arm(run, lane, fixed, needs, after, "patched", seed, store, tell)
    run.patched.append(arm)
    missing = patching.unexecuted(after, arm.record.get("executed", {}))
    run.hunks = {hunk.name: hunk.name not in missing for hunk in after}
    if run.request.arm == "patched":
        word = Verdict.FIX_INEFFECTIVE if arm.outcome == "bug" else Verdict.INCONCLUSIVE
        return Ruling(word, f"patched arm alone: {arm.outcome}: {arm.reason}", "run both arms")
    return rule(run.pristine[-1].as_json(), arm.as_json(), missing)


def _arm(
    run: Run,
    lane: Lane,
    tree: Tree,
    needs: list[Path],
    hunks: list[patching.Hunk],
    name: str,
    seed: int,
    store: Store,
    tell: Say,
) -> ArmResult:
    pin, pack = run.pin, run.pack
    assert pin is not None
    spec = ArmSpec(
        reproducer=pack.reproducer,
        tree=patching.import_root(tree.path, pack.upstream.source_root),
        needs=needs,
        lane=run.request.lane,
        seed=seed,
        label=f"{pack.upstream.distribution} {run.tree.label.split(' ', 1)[-1] if run.tree else pin.label}",
        watch=_inside(patching.ranges(hunks), pack, tree),
        timeout_s=lane.timeout_s,
        memory_gib=lane.memory_gib,
        cache=store.root / "cache",
        threads=run.request.threads,
    )
    result = run_arm(spec, lambda line: tell(name, line))
    result.record["executed"] = _outside(result.record.get("executed", {}), pack, tree)
    tell(name, f"-> {result.outcome} in {result.seconds:.1f} s, peak {result.peak_gib:.2f} GiB: {result.reason}")
    return result


def _prefix(pack: Pack, tree: Tree) -> str:
    root = patching.import_root(tree.path, pack.upstream.source_root)
    return "" if root == tree.path else os.path.relpath(root, tree.path) + "/"


def _inside(ranges: Ranges, pack: Pack, tree: Tree) -> Ranges:
    """Paths relative to the import root, as the probe sees them."""
    prefix = _prefix(pack, tree)
    return {name.removeprefix(prefix): spans for name, spans in ranges.items()}


def _outside(executed: dict[str, Any], pack: Pack, tree: Tree) -> dict[str, Any]:
    """Back to paths relative to the tree, as the patch names them."""
    prefix = _prefix(pack, tree)
    return {prefix + name: seen for name, seen in executed.items()}


def _agree(rulings: list[Ruling]) -> Ruling:
    """One ruling for all repeats: the same verdict every time, or INCONCLUSIVE with the counts."""
    words = [r.verdict for r in rulings]
    if len(set(words)) == 1:
        reason = rulings[0].reason
        if len(words) > 1:
            reason += f" ({len(words)} of {len(words)} repeats; {confidence(len(words))})"
        return Ruling(words[0], reason, rulings[0].remedy)
    counts = ", ".join(f"{words.count(w)}x {w.value}" for w in dict.fromkeys(words))
    return Ruling(Verdict.INCONCLUSIVE, f"repeats disagree: {counts}", "raise -n, and look for a cause")


def confidence(repeats: int) -> str:
    """How rare a miss could be: with n agreeing repeats, 95% confident that another outcome is rarer than this."""
    return f"95% confident that another outcome occurs in fewer than {1 - 0.05 ** (1 / repeats):.0%} of runs"
