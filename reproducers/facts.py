"""What a text may state: look-ups in pack.yaml, the manifest's entry and the newest receipt of each lane."""

from __future__ import annotations

import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from reproducers.errors import PatchlaneError
from reproducers.receipts import newest, read
from reproducers.schema import Pack, Thread
from reproducers.table import BROKEN

RAISED = re.compile(r"no \w+ /.*/ from \S+", re.S)  # the limit that probe.attempt writes
BELONGS = ("reports it", "overlaps", "fixes it", "introduced it")  # relations of a thread where a comment has a place
TAIL, WIDTH, SHOWN = 16, 160, 8  # lines of a log and their characters, checks in a table


class Facts:
    """One pack's; PatchlaneError for what no receipt holds."""

    def __init__(self, pack: Pack, receipts: Path) -> None:
        self.pack, self.receipts = pack, receipts
        self.found = {lane: newest(pack, lane, receipts) for lane in sorted(pack.lanes)}
        self.receipt = cache(self._read)

    def _read(self, lane: str) -> dict[str, Any]:
        path = self.found.get(lane)  # type: ignore[call-overload]
        if path is None:
            raise PatchlaneError(
                f"{self.pack.id} has no receipt of the {lane} lane",
                f"python -m reproducers.run {self.pack.id} --lane {lane}, then python -m reproducers.manifest refresh",
            )
        return read(path)

    def _checks(self, lane: str, arm: str) -> list[dict[str, Any]]:
        return list((self.receipt(lane).get(arm) or [{"checks": []}])[-1]["checks"])

    def _check(self, lane: str, arm: str, name: str) -> dict[str, Any]:
        for check in self._checks(lane, arm):
            if check["name"] == name:
                return check
        raise PatchlaneError(
            f"{self.pack.folder.name}/body.md.j2: the {lane} receipt's {arm} arm has no check {name!r}",
            "name a check as the receipt does, or take a new receipt",
        )

    def measured(self, lane: str, arm: str, name: str) -> str:
        check = self._check(lane, arm, name)
        return said(check["measured"], check["unit"])

    def limit(self, lane: str, arm: str, name: str) -> str:
        check = self._check(lane, arm, name)
        return said(check["limit"], check["unit"])

    def versions(self, lane: str) -> dict[str, str]:
        return dict(self.receipt(lane)["versions"])

    def host(self, lane: str) -> str:
        host = self.receipt(lane)["host"]
        return str(host["gpus"][0]["name"]) if lane == "cuda" else f"CPU ({host['machine']})"

    @cached_property
    def lane(self) -> str:
        """The lane whose receipt stands for the rest: of a GPU where there is one."""
        lanes = [lane for lane, path in self.found.items() if path is not None]
        return "cuda" if "cuda" in lanes else (lanes or sorted(self.pack.lanes))[0]

    @cached_property
    def entry(self) -> dict[str, Any]:
        """What the manifest says of the pack, derived anew."""
        from reproducers.manifest import build

        found: dict[str, Any] = build([self.pack], self.receipts)["packs"][self.pack.id]
        return found

    @property
    def broken(self) -> list[str]:
        """Releases and commits that receipts show with the bug."""
        return [name for name, word in self.entry["tried"].items() if word in BROKEN and " " not in name]  # unstacked

    @property
    def healthy(self) -> list[str]:
        """Those that receipts show without it."""
        return [name for name, word in self.entry["tried"].items() if word == "FIXED_UPSTREAM"]

    @property
    def fixed(self) -> bool:
        """Whether the receipt of ``lane`` shows the patched tree healthy and its guards as before."""
        return "FIX_VALIDATED" in self.receipt(self.lane)["sentinels"]

    @property
    def last_good(self) -> str | None:
        """The newest release before the live one that a receipt shows without the bug: it is a regression then."""
        from packaging.version import Version

        live = self.pack.pins["live"].release
        earlier = [v for v in self.healthy if live and len(v) < 40 and Version(v) < Version(live)]
        return max(earlier, key=Version) if earlier else None

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The bug checks that the unpatched tree failed on ``lane``."""
        return [c for c in self._checks(self.lane, "pristine") if c["role"] == "bug" and c["state"] == "bug"]

    @property
    def table(self) -> list[tuple[str, str, str]]:
        """(check, measured, limit) of the first of them."""
        rows = [(c["name"], said(c["measured"], c["unit"]), said(c["limit"], c["unit"])) for c in self.failed]
        return [(_cell(a), _cell(b), _cell(c)) for a, b, c in rows[:SHOWN]]

    @property
    def raised(self) -> list[str]:
        """What the unpatched tree raised, each message once."""
        shown = [c for c in self.failed if isinstance(c["limit"], str) and RAISED.fullmatch(c["limit"])]
        return list(dict.fromkeys(str(check["measured"]) for check in shown))

    @property
    def environment(self) -> dict[str, str]:
        """The host's and the packages' names and versions, of ``lane``."""
        receipt = self.receipt(self.lane)
        host, versions = receipt["host"], dict(receipt["versions"])
        found = {"Python": versions.pop("python")}
        for name, gpu in {f"{g['name']}, {g['memory']}, driver {g['driver']}": g for g in host["gpus"]}.items():
            found["GPU"] = f"{host['gpus'].count(gpu)} x {name}, compute capability {gpu['capability']}"
        return {**found, "CPU": f"{host['machine']}, {host['cores']} cores", **versions}

    @property
    def log(self) -> bytes:
        """The log of ``lane``'s receipt, without our own first entry and the checks as JSON that its lines repeat."""
        self.receipt(self.lane)
        path = self.found[self.lane]  # type: ignore[index]
        assert path is not None
        lines = path.with_suffix(".log").read_text(encoding="utf-8").splitlines()
        said = [line for line in lines if not line.startswith("[run] ") and '] {"checks"' not in line[:40]]
        return "".join(f"{line}\n" for line in said).encode()

    @property
    def tail(self) -> str:
        """The end of that log, long lines cut."""
        lines = self.log.decode().splitlines()[-TAIL:]
        return "\n".join(line if len(line) <= WIDTH else line[:WIDTH] + "…" for line in lines)

    @property
    def stamp(self) -> dict[str, str]:
        """What the log is the log of."""
        receipt, path = self.receipt(self.lane), self.found[self.lane]  # type: ignore[index]
        assert path is not None
        pin = self.pack.pins["live"]
        return {
            "verdict": receipt["verdict"], "taken": receipt["started"], "on": self.host(self.lane),
            "tree": f"{self.pack.upstream.distribution} {pin.label}", "receipt": path.stem,
            "log's sha256": receipt["log_sha256"],
        }  # fmt: skip


def thread(pack: Pack) -> Thread | None:
    """Where a comment has its place: the thread that ``filing`` names, else the one that is nearest to the bug."""
    threads = {thread.url: thread for thread in pack.upstream_state.threads if "/commit/" not in thread.url}
    if pack.filing.thread in threads:
        return threads[pack.filing.thread]
    near = [thread for relation in BELONGS for thread in threads.values() if thread.relation == relation]
    return next(iter(near), None)


def said(value: float | str | None, unit: str) -> str:
    """A measured value or limit as a text has it."""
    text = f"{value:.4g}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}".strip()


def _cell(text: str) -> str:
    """As a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
