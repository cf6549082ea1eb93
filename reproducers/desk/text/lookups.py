"""The facts that a text may state, from pack.yaml, the manifest's entry and the newest receipts at the filed pin."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import BROKEN, HEALTHY, Verdict
from reproducers.desk.text import commands, logs, minimal
from reproducers.evidence.receipts import newest, newest_of, read
from reproducers.record.entry import Entry
from reproducers.record.receipt import ArmName, Check, Details, is_number
from reproducers.record.schema import Pack, Thread
from reproducers.upstream import patching

BELONGS = (
    "reports it",
    "overlaps",
    "fixes it",
    "introduced it",
)  # a comment fits on threads of these relations
SHOWN = 8  # checks in a table
SHOWN_SHA = 7  # characters, as GitHub shows them


class Facts:
    """The facts of one pack; PatchlaneError for a value that no receipt holds."""

    def __init__(self, pack: Pack, receipts: Path, entry: Entry | None = None) -> None:
        self.pack, self.receipts, self.pin = pack, receipts, pack.filing_pin
        self.newest = newest_of(pack, receipts, self.pin)
        self.receipt, self._newest = cache(self._read), cache(self._newest_at)
        self._entry = entry
        self.quoted: dict[tuple[str, str], Path] = {}  # {(lane, pin): the receipt} of what the text has stated so far

    def _path(self, lane: str, pin: str | None = None) -> Path:
        """The newest receipt of the lane at the pin, by default the filing's; PatchlaneError if there is none."""
        pin = pin or self.pin
        path = self._newest(lane, pin)
        if path is None:
            at = "" if pin == "live" else f" at pin {pin}"
            raise PatchlaneError(f"{self.pack.id} has no receipt of the {lane} lane{at}", again(self.pack, lane, pin))
        return path

    def _newest_at(self, lane: str, pin: str) -> Path | None:
        known = lane in self.pack.lanes and pin in self.pack.pins
        return newest(self.pack, lane, self.receipts, pin) if known else None

    def _read(self, lane: str, pin: str | None = None) -> Details:
        path = self.quoted[lane, pin or self.pin] = self._path(lane, pin)
        return read(path)

    def _check(self, lane: str, arm: ArmName, name: str, pin: str | None) -> Check:
        for check in self.receipt(lane, pin).checks(arm):
            if check.name == name:
                return check
        raise PatchlaneError(
            f"{self.pack.folder.name}/body.md.j2: the {lane} receipt's {arm} arm has no check {name!r}",
            "name a check as the receipt does, or take a new receipt",
        )

    def measured(self, lane: str, arm: ArmName, name: str, pin: str | None = None) -> str:
        """What a check measured, with its unit, at the filing's pin or another that the text names."""
        check = self._check(lane, arm, name, pin)
        raised = stand_in(check, self.receipt(lane, pin)) if arm == "pristine" else ""
        return f"raised {raised}" if raised else value_text(check.measured, check.unit)

    def limit(self, lane: str, arm: ArmName, name: str, pin: str | None = None) -> str:
        """A check's limit, with its unit."""
        check = self._check(lane, arm, name, pin)
        return value_text(check.limit, check.unit)

    def versions(self, lane: str, pin: str | None = None) -> dict[str, str]:
        """{distribution: version} of what the run imported."""
        return dict(self.receipt(lane, pin).versions)

    def host(self, lane: str, pin: str | None = None) -> str:
        """The hardware that it ran on, in words."""
        host = self.receipt(lane, pin).host
        return host.gpus[0].name if lane == "cuda" else f"CPU ({host.machine})"

    def measured_at(self, lane: str) -> str:
        """The pin of the lane's numbers: the filing's, or live if only the release was measured.

        A text that uses it must name the pin, by ``label``.
        """
        released = newest_of(self.pack, self.receipts)
        return "live" if lane in released and lane not in self.newest else self.pin

    def label(self, pin: str | None = None) -> str:
        """A pin as a text has it: its release, or its commit as a link."""
        named = self.pack.pins[pin or self.pin]
        return named.release or self._commit(str(named.sha))

    def _commit(self, name: str) -> str:
        """A release as it is; a commit shortened and linked, with "main at" if it is pinned as main."""
        if len(name) != 40:
            return name
        where = "main at " if self.pack.pin_name(name) == "main" else ""
        return f"{where}[{name[:SHOWN_SHA]}](https://github.com/{self.pack.upstream.repo}/commit/{name})"

    @property
    def install(self) -> str:
        """How the package under test was installed for the run at the pin."""
        pin, name = self.pack.pins[self.pin], self.pack.upstream.distribution
        if not pin.release:
            return f"source of {self.label()}, on PYTHONPATH"
        wheel = all(file.endswith(".whl") for file in pin.artifacts)
        return f"the {'wheel' if wheel else 'sdist'} of {name} {pin.release} from PyPI, unpacked on PYTHONPATH"

    @property
    def snippet(self) -> str:
        """The reproducer's minimal code; empty where it has none."""
        return (minimal.code(self.pack.reproducer) or "").strip()

    @property
    def shows(self) -> str:
        """What the minimal code shows, in the words of its docstring; empty where it has none."""
        return minimal.says(self.pack.reproducer)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """(what it needs, command) of each lane, the CPU's first, on the folders that ``checkouts`` makes."""
        return commands.runs(self.pack, self.pack.pins[self.pin])

    @property
    def alone(self) -> str:
        """The command that runs the minimal code alone, where that needs no GPU; else empty."""
        return f"{self.commands[0][1]} --minimal" if "cpu" in self.pack.lanes and self.snippet else ""

    @property
    def checkouts(self) -> list[str]:
        """The commands that come before these: they get what pip cannot install."""
        return commands.checkouts(self.pack, self.pack.pins[self.pin])

    @cached_property
    def lane(self) -> str:
        """The lane whose receipt the text shows: cuda if it has one."""
        lanes = list(self.newest) or sorted(self.pack.lanes)
        return "cuda" if "cuda" in self.newest else lanes[0]

    @cached_property
    def entry(self) -> Entry:
        """The pack's manifest entry, of ``entry_of`` where none was given."""
        from reproducers.evidence.manifest import entry_of

        return self._entry or entry_of(self.pack, self.receipts)

    @property
    def broken(self) -> list[str]:
        """Releases and commits that receipts show with the bug, as a text has them."""
        return self._tried(BROKEN)

    @property
    def healthy(self) -> list[str]:
        """Releases and commits that receipts show without the bug, as a text has them."""
        return self._tried(HEALTHY)

    def _tried(self, words: tuple[Verdict, ...]) -> list[str]:
        return [
            self._commit(name) for name, word in self.entry.tried.items() if word in words and " " not in name
        ]  # unstacked

    @property
    def fixed(self) -> bool:
        """Whether the receipt of ``lane`` shows the patched tree healthy and its guards as before."""
        return "FIX_VALIDATED" in self.receipt(self.lane).sentinels

    @property
    def last_good(self) -> str | None:
        """The newest release before the live one that a receipt shows without the bug: the bug is then a regression."""
        from packaging.version import Version

        live = self.pack.pins["live"].release
        earlier = [v for v in self.healthy if live and "[" not in v and Version(v) < Version(live)]
        return max(earlier, key=Version) if earlier else None

    @property
    def failed(self) -> list[Check]:
        """The bug checks that the unpatched tree failed on ``lane``."""
        return [check for check in self.receipt(self.lane).checks("pristine") if check.shows_bug]

    @property
    def table(self) -> list[tuple[str, str, str]]:
        """(check, measured, limit) of the first failed checks that measure a number."""
        rows = [
            (c.name, self.measured(self.lane, "pristine", c.name), value_text(c.limit, c.unit))
            for c in self.failed
            if is_number(c.measured) and is_number(c.limit)
        ]
        return [(_cell(a), _cell(b), _cell(c)) for a, b, c in rows[:SHOWN]]

    @property
    def raised(self) -> list[str]:
        """Tracebacks of the unpatched tree if the log has them, else each message once."""
        blocks = logs.tracebacks(self.log.decode())
        shown = [check for check in self.failed if check.signature]
        return list(dict.fromkeys(blocks or (str(check.measured) for check in shown)))

    @property
    def environment(self) -> dict[str, str]:
        """{name: version or model} of ``lane``'s host and packages; values that older receipts lack are left out."""
        receipt = self.receipt(self.lane)
        host, versions = receipt.host, dict(receipt.versions)
        named = {"OS": host.platform} if host.platform else {}
        named["Python"] = versions.pop("python")
        for name, gpu in {f"{g.name}, {g.memory}, driver {g.driver}": g for g in host.gpus}.items():
            named["GPU"] = f"{host.gpus.count(gpu)} x {name}, compute capability {gpu.capability}"
        cuda = {"CUDA": f"{versions.pop('cuda')} (torch's)"} if "cuda" in versions else {}
        named |= {"CPU": f"{host.machine}, {host.cores} cores", **cuda, **versions}
        return {**named, f"{self.pack.upstream.distribution} installed from": self.install}

    @property
    def log(self) -> bytes:
        """The log of ``lane``'s receipt, as it is attached."""
        return logs.attached(self._path(self.lane).with_suffix(".log"))

    @property
    def logs(self) -> dict[str, bytes]:
        """{file name: log} of every receipt that the text has quoted so far, that of ``lane`` first."""
        self.receipt(self.lane)
        main = (self.lane, self.pin)
        named = {main: f"{self.pack.id}.log"}
        for lane, pin in sorted(key for key in self.quoted if key != main):
            at = "" if pin == self.pin else f"-{self.pack.pins[pin].release or pin}"
            named[lane, pin] = f"{self.pack.id}-{lane}{at}.log"
        return {name: logs.attached(self.quoted[key].with_suffix(".log")) for key, name in named.items()}

    @property
    def failing(self) -> str:
        """What failed in that log without the patch."""
        receipt = self.receipt(self.lane)
        return logs.failing(self.log.decode(), {c.name for c in self.failed if stand_in(c, receipt)})

    @property
    def tests(self) -> list[str]:
        """Files that tests.patch adds to upstream's tests."""
        return [file.path for file in patching.files(self.pack.tests_patch)] if self.pack.tests_patch.is_file() else []

    @property
    def taken(self) -> str:
        """The hardware and day of ``lane``'s numbers."""
        return f"{self.host(self.lane)}, {self.receipt(self.lane).day}"


def again(pack: Pack, lane: str, pin: str) -> str:
    """The commands that take a receipt of a lane at a pin and import it."""
    at = f" --at {pin}" if pin != "live" else ""
    at += " --upstream CLONE" if pin in pack.pins and not pack.pins[pin].release else ""
    return f"python -m reproducers.run {pack.id}{at} --lane {lane}, then python -m reproducers.manifest refresh"


def thread(pack: Pack) -> Thread | None:
    """The thread for a comment: the thread that ``filing`` names, else the nearest to the bug; None without any.

    Only threads of the pack's own upstream count.
    """
    own = [thread for thread in pack.upstream_state.threads if pack.owns(thread.url) and "/commit/" not in thread.url]
    threads = {thread.url: thread for thread in own}
    if pack.filing.thread in threads:
        return threads[pack.filing.thread]
    near = [thread for relation in BELONGS for thread in threads.values() if thread.relation == relation]
    return next(iter(near), None)


def stand_in(check: Check, receipt: Details) -> str:
    """The exception for which a drawn check's 1 of the unpatched tree stands, "" for what was measured.

    Where the bug is an exception, the check's call has raised it: nothing was measured, and 1 says "wholly off".
    """
    failed = [c for c in receipt.checks("pristine") if c.shows_bug]
    raised = [c.signature.exception for c in failed if c.signature]
    fixed = [c for c in failed if not _drawn(c)]
    silent = check.measured == 1 and _drawn(check) and check.signature is None
    return raised[0] if silent and raised and all(c.signature for c in fixed) else ""


def _drawn(check: Check) -> bool:
    return "cases drawn with seed" in check.detail


def value_text(value: float | str | None, unit: str) -> str:
    """A measured value or limit as a text has it."""
    text = f"{value:.4g}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}".strip()


def _cell(text: str) -> str:
    """The text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
