"""Where training runs each patch, hunk by hunk, by kept runs of the very patch: the manifest's field ``training``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from patchlane.base.clock import today
from patchlane.base.files import file_sha256
from reproducers.record.entry import Reach
from reproducers.record.schema import Pack
from reproducers.training.runs import Executed, TrainingRun
from reproducers.upstream import patching

RECIPE = "ci/train --keep patched_DATE patched_paths"
DAYS = 30  # an older run proves nothing of today's training
DEFAULT, NOWHERE = "by default", "nowhere"
STACK = "released"  # runs on others are told apart by their stack


def names(pack: Pack, patch: Path) -> list[str]:
    """The hunks of a patch in their order, ``FILE hunk N`` with the file's path in the installed package."""
    return [hunk.name for hunk in patching.hunks(patch, _strip(pack), after=True)]


def _strip(pack: Pack) -> int:
    return 1 + len(Path(pack.upstream.source_root).parts)


def found(packs: Sequence[Pack], taken: Sequence[TrainingRun]) -> dict[str, dict[str, list[Reach]]]:
    """{pack: {patch: where training runs it}} of the patches that one of the runs applied as they are."""
    reaches = dict[str, dict[str, list[Reach]]]()
    for pack in packs:
        for patch in sorted(pack.folder.glob("*.patch")):
            digest = file_sha256(patch)
            if any(run.patches.get(pack.id) == digest for run in taken):
                reaches.setdefault(pack.id, {})[patch.name] = of(pack, patch, taken)
    return reaches


def faults(
    packs: Sequence[Pack], states: Mapping[str, str], trained: Mapping[str, Mapping[str, list[Reach]]]
) -> list[str]:
    """A line with its remedy for each validated pack of which no kept run of the last DAYS days executes a line, where
    kept runs patch its distribution and not each hunk of the patches that they apply says why none can, and for each
    hunk of ``untrained`` that a run executes, or that no patch has."""
    rows, patched = [], {pack.upstream.distribution for pack in packs if pack.id in trained}
    for pack in packs:
        reaches = [reach for found in trained.get(pack.id, {}).values() for reach in found]
        days = [reach.newest for reach in reaches if reach.newest]
        needed = pack.upstream.distribution in patched and pack.patch.is_file()
        if needed and states.get(pack.id) == "validated":
            if not days and not (reaches and all(reach.why for reach in reaches)):
                rows.append(f"{pack.id} is validated and no kept training run executes its patch; fix: {RECIPE}")
            elif days and (age := (today() - max(days)).days) > DAYS:
                rows.append(
                    f"{pack.id}: the newest training run that executes its patch is {age} days old; fix: {RECIPE}"
                )
        for patch, whys in pack.untrained.items():
            known, ran = names(pack, pack.folder / patch), _ran(trained.get(pack.id, {}).get(patch, []))
            for name in whys:
                where = f"{pack.id}: untrained: {patch}: {name}"
                if name not in known:
                    rows.append(f"{where}: the patch has no such hunk; fix: name one of {', '.join(known)}")
                elif name in ran:
                    rows.append(f"{where}: {ran[name]} executes it; fix: remove the line")
    return rows


def _ran(reaches: Sequence[Reach]) -> dict[str, str]:
    """{hunk: the newest run that executes it}."""
    return {name: reach.run for reach in reaches if reach.run for name in reach.hunks}


def of(pack: Pack, patch: Path, kept: Sequence[TrainingRun]) -> list[Reach]:
    """Where training runs ``patch``: what runs by default first, what no run executes last."""
    digest, named = file_sha256(patch), names(pack, patch)
    decorators = patching.decorators(patch, _strip(pack))
    applied = [
        run._replace(packs={pack.id: tuple(map(_called, run.packs[pack.id], decorators))})
        for run in kept
        if run.patches.get(pack.id) == digest and len(run.packs[pack.id]) == len(named)
    ]
    found = dict[str, Reach]()
    for at, name in enumerate(named):
        reach = _reach(pack.id, at, applied, pack.untrained.get(patch.name, {}).get(name))
        key = reach.model_dump_json()
        found[key] = reach.model_copy(update={"hunks": [*(found[key].hunks if key in found else []), name]})
    return sorted(found.values(), key=lambda reach: (reach.where == NOWHERE, reach.where != DEFAULT, reach.where))


def _called(hunk: Executed, decorators: frozenset[int]) -> Executed:
    """The hunk, as not executed where all that was seen are decorators: they are the import's."""
    return Executed(False, frozenset()) if hunk.lines and hunk.lines <= decorators else hunk


def _reach(pack: str, at: int, applied: Sequence[TrainingRun], why: str | None) -> Reach:
    """The reach of the hunk at place ``at``, named later."""
    ran = [run for run in applied if run.packs[pack][at].ran]
    if not ran:
        return Reach(hunks=[], where=NOWHERE, why=why)
    ran = [run for run in ran if not run.other] or ran  # NAM56R's tell; another architecture's where they alone ran it
    rest = [run for run in applied if run not in ran and run.other == ran[0].other]
    newest = max(ran, key=lambda run: run.order)
    steps = [run for run in ran if not run.packs[pack][at].occasions]
    occasions = sorted({occasion for run in ran for occasion in run.packs[pack][at].occasions})
    default = _default([run for run in steps if not run.packs[pack][at].imported], applied)
    where = (
        f"when {' or '.join(occasions)}"
        if not steps
        else DEFAULT
        if f"cuda {STACK}" in _default(steps, applied)
        else _where(steps, rest)
    )
    return Reach(hunks=[], where=where, default=default, newest=newest.day, run=newest.name)


def _default(ran: Sequence[TrainingRun], applied: Sequence[TrainingRun]) -> list[str]:
    newest = {(run.device, run.stack, run.size): run for run in applied if not run.asked and not run.other}
    kinds = {f"{run.device} {run.stack}": True for run in newest.values()}
    for run in newest.values():
        kinds[f"{run.device} {run.stack}"] &= run in ran
    return sorted(kind for kind, all_sizes in kinds.items() if all_sizes)


def _where(ran: Sequence[TrainingRun], rest: Sequence[TrainingRun]) -> str:
    """What the runs ``ran`` have in common and none of the ``rest`` has: device, stack, size, kernel paths."""
    words = []
    devices, stacks, sizes = ({getattr(run, what) for run in ran} for what in ("device", "stack", "size"))
    if devices == {"cpu"}:
        words.append("on a CPU")
    if STACK not in stacks:
        words.append(f"on stack {', '.join(sorted(stacks))}")
    alike = [run for run in rest if run.device in devices and run.stack in stacks]
    if alike and not sizes & {run.size for run in alike}:
        words.append(f"size {', '.join(sorted(sizes))}")
    elif alike:
        words += [f"under --path {path}" for path in _paths(ran, alike)]
    return ", ".join(words) or f"in {max(ran, key=lambda run: run.order).name}"


def _paths(ran: Sequence[TrainingRun], rest: Sequence[TrainingRun]) -> list[str]:
    """``PART=PATH`` or ``PART=PATH or PATH`` of each part whose paths tell the runs from the rest. A part counts that
    all record, of those that record any: one that came later would tell old runs from new ones."""
    ran, rest = ([run for run in runs if run.paths] for runs in (ran, rest))
    found = []
    for part in ran[-1].paths if ran else ():
        if all(part in run.paths for run in (*ran, *rest)):
            taken = {run.paths[part] for run in ran}
            if not taken & {run.paths[part] for run in rest}:
                found.append(f"{part}={' or '.join(sorted(taken))}")
    return found
