"""Run several packs on one terminal: in parallel, with a closing table, JSON and JUnit."""

from __future__ import annotations

import dataclasses
import queue
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from patchlane.base.exits import Exit
from patchlane.base.files import write_atomic
from patchlane.base.wording import printable, short
from reproducers.base.verdicts import VERDICT_MEANING, Verdict
from reproducers.host.facts import visible_gpus
from reproducers.record.schema import Pack
from reproducers.trial.arms import ArmResult, kill_children
from reproducers.trial.experiment import Request, Run, execute, expected
from reproducers.trial.screen import Announcer, Screen, cut, told
from reproducers.upstream.store import Store

Ended = Callable[[Run], None]
LABEL = 28  # characters of a tree's name in the closing table, so that a row fits 80 columns


def run_packs(
    packs: list[Pack], request: Request, workers: int, out: Console, verbose: bool = False, ended: Ended | None = None
) -> list[Run]:
    """Run the packs, ``workers`` at a time, and call ``ended`` with each run as it ends.

    On the cuda lane of a host with several GPUs, packs that use more than one run first, one at a time, with all GPUs;
    then the others run side by side, each on its own GPU. An interrupt kills every child before it propagates.
    """
    store, screen = Store(progress=Announcer(out)), Screen(out, verbose=verbose, streaming=workers == 1)
    gpus = visible_gpus() if request.lane == "cuda" and workers > 1 else []
    free = queue.SimpleQueue[str]()
    for number in range(workers if gpus else 0):
        free.put(gpus[number % len(gpus)])
    wide = [number for number, pack in enumerate(packs) if len(gpus) > 1 and _wide(pack)]

    def run(number: int) -> Run:
        pack, gpu = packs[number], None if number in wide or not gpus else free.get()
        screen.begin(pack.id)
        if not out.is_terminal and not screen.silent:
            out.print(escape(begun(pack, request)))
        asked = dataclasses.replace(request, gpu=gpu)
        try:
            done = execute(pack, asked, store, lambda arm, line: screen.say(pack.id, arm, line))
        finally:
            if gpu is not None:
                free.put(gpu)
        if ended:
            ended(done)
        screen.end(done)
        return done

    others = [number for number in range(len(packs)) if number not in wide]
    with screen.live():
        runs = dict(zip(wide, _in_threads(run, wide, 1, screen), strict=True))
        runs |= zip(others, _in_threads(run, others, workers, screen), strict=True)
    return [runs[number] for number in range(len(packs))]


def begun(pack: Pack, request: Request) -> str:
    """What is to come of a pack, for who sees no last line that counts seconds."""
    arms = ["pristine", "patched"] if request.arm == "both" and pack.patch.is_file() else [request.arm]
    arms = ["pristine"] if arms == ["both"] else arms
    lane = pack.lanes.get(request.lane)  # type: ignore[call-overload]
    limit = request.timeout_s or (lane.timeout_s if lane else 0)
    each = f", up to {limit:g} s of processor time each" if limit else ""
    return f"{pack.id}: {' and '.join(arms)}{f', {request.repeats} times' if request.repeats > 1 else ''}{each}"


def _wide(pack: Pack) -> bool:
    """Whether its cuda lane uses more than one GPU where it can."""
    lane = pack.lanes.get("cuda")
    return lane is not None and max(lane.gpus, lane.up_to_gpus) > 1


def _in_threads(run: Callable[[int], Run], numbers: list[int], workers: int, screen: Screen) -> list[Run]:
    pool = ThreadPoolExecutor(workers)
    try:
        return [f.result() for f in [pool.submit(run, number) for number in numbers]]
    except BaseException:
        screen.silence()
        pool.shutdown(wait=False, cancel_futures=True)
        kill_children()
        raise
    finally:
        pool.shutdown(wait=True)


def summary(runs: list[Run], out: Console) -> None:
    """Print the closing table, one line a run even at 80 columns, and the advice for every contradiction."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("pack", "tree", "lane", "verdict", "seconds"):
        table.add_column(column, no_wrap=True, justify="right" if column == "seconds" else "left")
    for run in runs:
        fine = run.ruling.verdict in expected(run.pack, run.request)
        seconds = sum(arm.seconds for results in run.arms.values() for arm in results)
        table.add_row(
            run.pack.id,
            escape(cut(short(run.tree.origin if run.tree else run.request.at), LABEL)),
            run.request.lane,
            f"[{'green' if fine else 'red'}]{run.ruling.verdict.value}[/]",
            f"{seconds:.1f}",
        )
    out.print(table)
    for run in runs:
        for line in advice(run):
            out.print(escape(line))


def exit_code(runs: list[Run]) -> Exit:
    """OK if every verdict is expected; CONTRADICTED outranks CANNOT_TEST."""
    words = [(run.ruling.verdict, expected(run.pack, run.request)) for run in runs]
    if any(word not in wanted and word is not Verdict.UNTESTABLE for word, wanted in words):
        return Exit.CONTRADICTED
    return Exit.CANNOT_TEST if any(word is Verdict.UNTESTABLE for word, _ in words) else Exit.OK


def advice(run: Run) -> list[str]:
    """Lines that say what to do about an unexpected verdict; none for an expected one."""
    wanted = expected(run.pack, run.request)
    if run.ruling.verdict in wanted:
        return []
    lines = [
        f"{run.pack.id}: {run.ruling.verdict.value} ({VERDICT_MEANING[run.ruling.verdict]}),"
        f" expected {' or '.join(sorted(v.value for v in wanted))}: {run.ruling.reason}"
    ]
    if run.ruling.verdict.value == "FIXED_UPSTREAM":
        tree = run.tree.origin if run.tree else run.request.at
        lines.append(
            f"  fix: if {tree} is to be supported, drop the patch there: set"
            f" pins.fixed in {run.pack.folder.name}/pack.yaml to the first fixed release, or make the pack a guard"
        )
    elif run.ruling.remedy:
        lines.append(f"  fix: {run.ruling.remedy}")
    return lines


def as_json(run: Run) -> dict[str, object]:
    return {
        "pack": run.pack.id,
        "tree": str(run.tree.origin) if run.tree else None,
        "lane": run.request.lane,
        "verdict": run.ruling.verdict.value,
        "expected": sorted(v.value for v in expected(run.pack, run.request)),
        "reason": run.ruling.reason,
        "remedy": run.ruling.remedy,
        "sentinels": run.sentinels,
        **{name: [a.arm().model_dump(mode="json") for a in results] for name, results in run.arms.items()},
    }


def write_junit(runs: list[Run], path: Path) -> None:
    """A suite for each pack; a case for each check, for each arm (with its seconds) and for the verdict."""
    suites = [_suite(run) for run in runs]
    root = ElementTree.Element("testsuites", _totals("patchlane", suites))
    root.extend(suites)
    write_atomic(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _totals(name: str, below: list[ElementTree.Element]) -> dict[str, str]:
    """Counts and seconds over suites, or over the cases of one."""
    cases = [case for element in below for case in element.iter("testcase")]
    counted = {tag: str(sum(case.find(tag) is not None for case in cases)) for tag in ("failure", "skipped")}
    seconds = sum(float(case.get("time", 0)) for case in cases)
    return {
        "name": name,
        "tests": str(len(cases)),
        "failures": counted["failure"],
        "errors": "0",
        "skipped": counted["skipped"],
        "time": f"{seconds:.2f}",
    }


def _suite(run: Run) -> ElementTree.Element:
    where = f"{run.pack.id}.{run.request.lane}"
    wanted, verdict = expected(run.pack, run.request), run.ruling.verdict
    fault = "" if verdict in wanted or verdict is Verdict.UNTESTABLE else f"{verdict.value}: {run.ruling.reason}"
    cases = [_case(where, "verdict", fault, run.ruling.reason if verdict is Verdict.UNTESTABLE else "")]
    for arm, results in run.arms.items():
        shows = arm == "pristine" and wanted != {Verdict.FIXED_UPSTREAM}  # the bug is expected here
        for number, result in enumerate(results):
            place = f"{where}.{arm}" + (f".{number + 1}" if len(results) > 1 else "")
            cases += _arm_cases(place, result, ("different", "failed") if shows else ("bug", "different", "failed"))
    suite = ElementTree.Element("testsuite", _totals(run.pack.id, cases))
    suite.extend(cases)
    return suite


def _arm_cases(place: str, result: ArmResult, faults: tuple[str, ...]) -> list[ElementTree.Element]:
    fault = f"{result.outcome}: {result.reason}" if result.outcome in faults else ""
    cases = [_case(place, "arm", fault, result.reason if result.outcome == "cannot_test" else "", result.seconds)]
    for check in result.checks:
        fault, skipped = (told(check) if check.state in states else "" for states in (faults, ("skipped",)))
        cases.append(_case(place, check.name, fault, skipped))
    return cases


def _case(place: str, name: str, fault: str, skipped: str, seconds: float = 0) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=printable(place), name=printable(name), time=f"{seconds:.2f}")
    for tag, message in (("failure", fault), ("skipped", skipped)):
        if message:
            ElementTree.SubElement(case, tag, message=printable(message))
    return case
