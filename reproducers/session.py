"""A set of runs on one terminal: parallel packs, live prefixed output, receipts, the closing table, JUnit."""

from __future__ import annotations

import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reproducers import disk, receipts
from reproducers.arms import kill_children
from reproducers.experiment import Request, Run, execute, expected
from reproducers.schema import ROOT, Pack
from reproducers.store import Store, write_atomic
from reproducers.verdicts import VERDICT_MEANING

COLOURS = {"bug": "red", "healthy": "green", "different": "yellow", "passed": "green", "failed": "red"}


def console(as_json: bool) -> Console:
    """People's output goes to stderr when stdout carries JSON."""
    return Console(stderr=as_json, highlight=False, soft_wrap=True)


class Announcer:
    """Fetch progress as lines: at the start, each quarter and the end, so that logs stay readable."""

    def __init__(self, out: Console) -> None:
        self.out, self.last, self.lock = out, dict[str, int](), threading.Lock()

    def __call__(self, name: str, done: int, size: int) -> None:
        quarter = 4 * done // size if size else 0
        with self.lock:
            if self.last.get(name) == quarter:
                return
            self.last[name] = quarter
        self.out.print(f"[dim]fetch {escape(name)} {done / 2**20:.1f} of {size / 2**20:.1f} MiB[/]")


def run_packs(packs: list[Pack], request: Request, workers: int, out: Console) -> list[Run]:
    """Run the packs, ``workers`` at a time; an interrupt kills every child before it propagates."""
    store = Store(progress=Announcer(out))

    def one(pack: Pack) -> Run:
        def say(arm: str, line: str) -> None:
            if not line.startswith('{"'):
                out.print(f"[bold]{pack.id}[/] [dim]{arm:8}[/] {_coloured(line)}")

        return execute(pack, request, store, say)

    pool = ThreadPoolExecutor(workers)
    try:
        return [f.result() for f in [pool.submit(one, pack) for pack in packs]]
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        kill_children()
        raise
    finally:
        pool.shutdown(wait=True)


def _coloured(line: str) -> str:
    text = escape(line)
    for word, colour in COLOURS.items():
        if line.startswith("[") and line[1:11].strip() == word:
            return f"[{colour}]{text}[/]"
    return text


def places(store: Store, upstream: Path | None = None) -> dict[str, str]:
    """This machine's folders and the roles that stand for them in receipts."""
    roles = {str(store.root): "<store>", str(ROOT): "<repo>", sys.prefix: "<venv>", sys.base_prefix: "<python>"}
    roles |= {str(Path.home()): "<home>", tempfile.gettempdir(): "<tmp>"}
    if upstream is not None:
        roles |= {str(upstream): "<upstream>", str(upstream.resolve()): "<upstream>"}
    return {path: role for path, role in roles.items() if path not in ("/", "/usr", ".")}


def record(runs: list[Run], root: Path, host: str, command: list[str], out: Console) -> bool:
    """Write each run's receipt; False where one had to go to the temporary folder, which is told with the way back."""
    spare: Path | None = None
    for run in runs:
        roles = places(Store(), run.request.upstream)
        try:
            path = receipts.write(run, spare or root, host, command, roles)
        except OSError as error:
            spare = Path(tempfile.mkdtemp(prefix="patchlane-receipts-"))
            path = receipts.write(run, spare, host, command, roles)
            out.print(f"[red]error: {escape(str(disk.described(error, root)))}[/]")
            out.print(f"  mend: make room, then: cp -r {escape(str(spare))}/. {escape(str(root))}/")
        out.print(f"[dim]receipt {path}[/]")
    return spare is None


def summary(runs: list[Run], out: Console) -> None:
    """The closing table, and for every contradiction what to do."""
    table = Table(title="verdicts", title_justify="left")
    for column in ("pack", "tree", "lane", "verdict", "sentinels", "seconds"):
        table.add_column(column, overflow="fold")
    for run in runs:
        fine = run.ruling.verdict in expected(run.pack, run.request)
        seconds = sum(arm.seconds for results in run.arms.values() for arm in results)
        table.add_row(
            run.pack.id,
            run.tree.label if run.tree else run.request.at,
            run.request.lane,
            f"[{'green' if fine else 'red'}]{run.ruling.verdict.value}[/]",
            " ".join(run.sentinels) or "-",
            f"{seconds:.1f}",
        )
    out.print(table)
    for run in runs:
        for line in advice(run):
            out.print(escape(line))


def advice(run: Run) -> list[str]:
    """What to do about a verdict that is not the expected one."""
    wanted = expected(run.pack, run.request)
    if run.ruling.verdict in wanted:
        return []
    said = [
        f"{run.pack.id}: {run.ruling.verdict.value} ({VERDICT_MEANING[run.ruling.verdict]}),"
        f" expected {' or '.join(sorted(v.value for v in wanted))}: {run.ruling.reason}"
    ]
    if run.ruling.verdict.value == "FIXED_UPSTREAM":
        said.append(
            f"  mend: if {run.tree.label if run.tree else run.request.at} is to be supported, drop the patch there: set"
            f" pins.fixed in {run.pack.folder.name}/pack.yaml to the first fixed release, or make the pack a guard"
        )
    elif run.ruling.remedy:
        said.append(f"  mend: {run.ruling.remedy}")
    return said


def as_json(run: Run) -> dict[str, Any]:
    return {
        "pack": run.pack.id,
        "tree": run.tree.label if run.tree else None,
        "lane": run.request.lane,
        "verdict": run.ruling.verdict.value,
        "expected": sorted(v.value for v in expected(run.pack, run.request)),
        "reason": run.ruling.reason,
        "remedy": run.ruling.remedy,
        "sentinels": run.sentinels,
        **{name: [a.as_json() for a in results] for name, results in run.arms.items()},
    }


def write_junit(runs: list[Run], path: Path) -> None:
    """One test case a pack: an unexpected verdict is a failure, UNTESTABLE a skip."""
    suite = ElementTree.Element("testsuite", name="patchlane", tests=str(len(runs)))
    for run in runs:
        case = ElementTree.SubElement(suite, "testcase", classname=run.request.lane, name=run.pack.id)
        if run.ruling.verdict.value == "UNTESTABLE":
            ElementTree.SubElement(case, "skipped", message=run.ruling.reason)
        elif run.ruling.verdict not in expected(run.pack, run.request):
            ElementTree.SubElement(case, "failure", message=f"{run.ruling.verdict.value}: {run.ruling.reason}")
    write_atomic(path, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
