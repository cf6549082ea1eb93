"""Show a run to a person: a line for each arm that ends, its failing checks below, and a line for the verdict.

The receipt's log has all output of an arm; ``verbose`` shows it here too.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.live import Live
from rich.text import Text

from patchlane.base.wording import count
from reproducers.base import cli
from reproducers.base.verdicts import Verdict
from reproducers.record.receipt import Arm, ArmName, Check, record_of
from reproducers.trial import census
from reproducers.trial.experiment import Run, expected

COLOURS = {
    "bug": "red",
    "failed": "red",
    "different": "yellow",
    "cannot test": "yellow",
    "healthy": "green",
    "passed": "green",
}
ENDED = re.compile(r"-> (\w+) in ([\d.]+) s, peak [\d.]+ GiB: (.*)", re.DOTALL)  # the engine's last line of an arm
CHECK = re.compile(r"\[ *(\w+)\] ")
SHOWN = {
    Verdict.REPRODUCED_AND_FIXED: "bug -> healthy",
    Verdict.REPRODUCED: "bug",
    Verdict.FIXED_UPSTREAM: "healthy",
}
FAILING = ("bug", "different", "failed")
DECIDING = ("bug", "guard", "digest")
TAIL = 5  # lines shown of an arm that died without a reason
PIPE_WIDTH = 160  # of a line without a terminal
QUIET_MIB = 5
SLOW_S = 2.0


def console(as_json: bool) -> Console:
    """The console for people: stderr if stdout carries JSON."""
    return cli.console(stderr=as_json, highlight=False, soft_wrap=True)


def width(out: Console) -> int:
    """Characters that a line may have."""
    return out.width if out.is_terminal else max(out.width, PIPE_WIDTH)


def cut(text: str, room: int) -> str:
    """The first line of ``text``, cut to ``room`` characters with an ellipsis."""
    line = (text.splitlines() or [""])[0]
    return line if len(line) <= room else line[: max(room - 1, 0)] + "…"


class Announcer:
    """Print fetch progress at the start, each quarter and the end, so that logs stay readable.

    Files under 5 MiB are not announced.
    """

    def __init__(self, out: Console) -> None:
        self.out, self.last, self.lock = out, dict[str, int](), threading.Lock()

    def __call__(self, name: str, done: int, size: int) -> None:
        quarter = 4 * done // size if size else 0
        with self.lock:
            if max(size, done) < QUIET_MIB * 2**20 or self.last.get(name) == quarter:
                return
            self.last[name] = quarter
        self.out.print(Text(f"fetch {name} {done / 2**20:.1f} of {size / 2**20:.1f} MiB", "dim"))


def told(check: Check) -> str:
    """A check in words: its name, measured value and limit."""
    measured, limit, unit = check.measured, check.limit, check.unit
    if measured is None:
        return f"{check.name}{check.detail and ': ' + check.detail}"
    if isinstance(limit, str):  # an attempt: it returned or it raised
        return f"{check.name}{'' if measured == 'returned' else f': raised {measured}'}"
    wanted = f", limit {_number(limit)}" if limit is not None else ""
    return f"{check.name}: {_number(measured)}{unit and ' ' + unit}{wanted}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def tally(checks: list[Check]) -> str:
    """``1 of 2 checks``: failures among the arm's deciding checks; notes and skipped checks do not count."""
    deciding = [check for check in checks if check.role in DECIDING]
    failing = sum(check.state in FAILING for check in deciding)
    if not deciding:
        return "no check"
    return f"{failing} of {count(len(deciding), 'check')}" if failing else count(len(deciding), "check")


class Screen:
    """Print whole arms, so that packs that run side by side never mix their lines."""

    def __init__(self, out: Console, *, verbose: bool = False, streaming: bool = True) -> None:
        """``streaming``: show a verbose line as it comes; otherwise when its arm ends."""
        self.out, self.verbose, self.streaming = out, verbose, streaming
        self.lock, self.silent = threading.Lock(), False
        self.lines: dict[str, list[str]] = {}
        self.busy: dict[str, tuple[str, float]] = {}

    def say(self, pack: str, arm: str, line: str) -> None:
        """Take one line of an arm; print the arm at its last line."""
        with self.lock:
            if not self.silent and arm == "verdict" and line.startswith(census.LINE):
                self.busy[pack] = ("census", time.monotonic())
                said = f"{pack} census    {line.removeprefix(census.LINE)}"
                self.out.print(Text(said if self.verbose else cut(said, width(self.out))))
            if self.silent or arm in ("needs", "verdict"):
                return
            lines = self.lines.setdefault(pack, [])
            if not lines:
                self.busy[pack] = (arm, time.monotonic())
            ended = ENDED.fullmatch(line)
            if ended is None:
                lines.append(line)
                if self.verbose and self.streaming and not line.startswith('{"'):
                    self.out.print(self._line(pack, arm, line))
                return
            del self.lines[pack]
            self.busy[pack] = ("", time.monotonic())
            self.out.print(Text("\n").join(self._arm(pack, arm, lines, *ended.groups())))

    def begin(self, pack: str) -> None:
        """Note that the pack is prepared: fetched, unpacked, patched."""
        with self.lock:
            self.busy[pack] = ("", time.monotonic())

    def end(self, run: Run) -> None:
        """Print the pack's verdict."""
        with self.lock:
            self.busy.pop(run.pack.id, None)
            if not self.silent:
                self.out.print(verdict(run, width(self.out)))

    def silence(self) -> None:
        """Print nothing more: the output of killed arms is no result."""
        with self.lock:
            self.silent = True

    def live(self) -> AbstractContextManager[object]:
        """On a terminal, a last line with every arm that has run for over two seconds."""
        if not self.out.is_terminal:
            return nullcontext()
        return Live(get_renderable=self._progress, console=self.out, refresh_per_second=2, transient=True)

    def _progress(self) -> Text:
        now = time.monotonic()
        rows = [(f"{pack} {arm or 'preparing'}", now - since) for pack, (arm, since) in list(self.busy.items())]
        slow = " · ".join(f"{name} {seconds:.0f} s" for name, seconds in rows if seconds > SLOW_S)
        return Text(cut(slow, self.out.width - 1), "dim")

    def _arm(self, pack: str, arm: str, lines: list[str], outcome: str, seconds: str, reason: str) -> list[Text]:
        room, word = width(self.out), outcome.replace("_", " ")
        record = record_of(lines[-1]) if lines else None
        checks = record.checks if record else []
        rows = [self._line(pack, arm, x) for x in lines if not x.startswith('{"')] if self._whole() else []
        head = Text(f"{pack} {arm:8}  ")
        head.append(f"{word:11}", COLOURS[word]).append(f"  {tally(checks)}, {float(seconds):.0f} s")
        rows.append(head)
        if self.verbose:
            return rows
        failing = [check for check in checks if check.state in FAILING]
        for check in failing:
            row = Text("  ").append(f"{check.state:9}", COLOURS[check.state])
            rows.append(row.append(cut(f"  {told(check)}", room - 11)))
        if word in ("different", "cannot test") and not (failing and record and record.outcome == outcome):
            rows += [Text(cut(f"  {x}", room), "dim") for x in lines[-TAIL:] if not record and not x.startswith('{"')]
            rows.append(Text(cut(f"  {reason}", room), COLOURS[word]))
        return rows

    def _whole(self) -> bool:
        return self.verbose and not self.streaming

    @staticmethod
    def _line(pack: str, arm: str, line: str) -> Text:
        state = CHECK.match(line)
        colour = COLOURS.get(state[1], "") if state else ""
        return Text.assemble((pack, "bold"), " ", (f"{arm:8}", "dim"), " ", (line, colour))


def verdict(run: Run, room: int) -> Text:
    """``pack05  REPRODUCED_AND_FIXED  10 bug checks: bug -> healthy, 10 guards held``, and the sentinels under it."""
    fine = run.ruling.verdict in expected(run.pack, run.request)
    word = run.ruling.verdict.value
    row = Text(f"{run.pack.id}  ").append(word, f"bold {'green' if fine else 'red'}")
    row.append(cut(f"  {_short(run)}", room - len(row.plain)))
    if run.sentinels:
        row.append(f"\n{'':8}{' '.join(run.sentinels)}", "dim")
    for line in run.placed:
        row.append(f"\n{'':8}{cut(line, room - 8)}", "yellow")
    return row


def _short(run: Run) -> str:
    arms = {name: [result.arm() for result in results] for name, results in run.arms.items()}
    return in_numbers(run.ruling.verdict, run.ruling.reason, arms)


def in_numbers(verdict: Verdict, reason: str, arms: dict[ArmName, list[Arm]]) -> str:
    """Counts of the checks by what they showed; the reason if they decided nothing. ``arms`` are a receipt's."""
    pristine = arms["pristine"]
    if verdict not in SHOWN or not pristine:
        return reason
    word, checks = SHOWN[verdict], pristine[-1].checks
    if arms["fixed"] and verdict is Verdict.REPRODUCED:
        word = "bug -> healthy in the fixed release"
    wanted = "healthy" if word == "healthy" else "bug"
    bugs = sum(check.role == "bug" and check.state == wanted for check in checks)
    held = sum(check.role == "guard" and check.state == "passed" for check in checks)
    parts = [f"{count(bugs, 'bug check')}: {word}"]
    parts += [f"{count(held, 'guard')} held"] if held else []
    parts += [f"{len(pristine)} repeats agree"] if len(pristine) > 1 else []
    return ", ".join(parts)
