"""The probe of the runner's arms: it watches the tree's executed lines and prints stamp and record as JSON.

It is not part of an exported file.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from reproducers.base.files import file_sha256
from reproducers.probe.api import Probe, locate
from reproducers.probe.checks import Check, Signature
from reproducers.probe.lanes import kept
from reproducers.probe.stamp import capability, versions
from reproducers.probe.watch import Watch


class WatchedProbe(Probe):
    """A probe that records the tree's executed lines; its stamp and record are lines of JSON."""

    @staticmethod
    def options(parser: ArgumentParser, pack: int) -> None:
        """Add the options that only the runner gives."""
        parser.add_argument("--label", default="", help="release or SHA of the tree, for the stamp")
        parser.add_argument("--watch", type=Path, help="JSON: {path in tree: [[first, last line], ...]}")
        parser.set_defaults(pack=pack)

    def __init__(self, package: str, args: Namespace) -> None:
        super().__init__(package, args)
        self.watch: Watch | None = None

    def open(self) -> None:
        """Print the stamp, even if the tree lacks the package, and begin to watch."""
        tree = None
        try:
            self.tree = tree = locate(self.package, self.args.tree, "--tree")
        finally:
            self._stamp(tree)
        self.watch = Watch(self.tree, json.loads(self.args.watch.read_text()))
        self.watch.start()

    def close(self, outcome: str, reason: str, remedy: str) -> None:
        """Print the record; its remedy names options of the verb that started this arm."""
        super().close(outcome, reason, remedy)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # NCCL complains at exit otherwise, after the record
        executed: dict[str, Any] = {}
        if self.watch is not None:
            self.watch.stop()
            executed = self.watch.report()
        if "--tree DIR" in remedy:
            remedy = f"python -m reproducers.run pack{self.args.pack:02} --upstream DIR that holds {self.package}/"
        elif "--needs DIR" in remedy or "header lists" in remedy:
            remedy = "python -m reproducers.doctor"
        record = {
            "outcome": outcome,
            "reason": reason,
            "remedy": remedy,
            "sentinel": "BUG_REPRODUCED" if outcome == "bug" else None,
            "checks": [_fields(check) for check in self.checks],
            "executed": executed,
        }
        _emit("record", record)

    def upstream(self, name: str) -> ModuleType:
        """As ``Probe.upstream``; kernels that are compiled from now on are watched too."""
        module = super().upstream(name)
        self._watch.hook_triton()
        return module

    def lower(self, func: Any, **configs: Any) -> str:
        """As ``Probe.lower``, but reuses earlier results, except where tilelang itself is under test."""
        return super().lower(func, **configs) if self.package == "tilelang" else kept.lower(func, configs)

    def nvcc(self, source: str) -> dict[str, int]:
        """As ``Probe.nvcc``, but reuses earlier results."""
        return kept.nvcc(source)

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        """A ``with`` block whose lines are not watched, because watching would add to the time that it measures."""
        return self._watch.paused()

    def ranks(self, world: int, work: Callable[[int], Any]) -> list[Any]:
        """As ``Probe.ranks``; the records of a rank's watch join this one's."""

        def watched(rank: int) -> tuple[Any, Any]:
            return work(rank), self._watch.seen()

        results = super().ranks(world, watched)
        for _, records in results:
            self._watch.merge(records)
        return [value for value, _ in results]

    @property
    def _watch(self) -> Watch:
        assert self.watch is not None, "open() comes first"
        return self.watch

    def _stamp(self, tree: Path | None) -> None:
        stamp = {
            "pack": self.args.pack,
            "package": self.package,
            "label": self.args.label,
            "imported_from": str(tree) if tree else None,
            "lane": self.lane,
            "seed": self.seed,
            "reproducer_sha256": file_sha256(Path(sys.modules["__main__"].__file__ or "")),
            "host": capability(),
            "versions": versions(),
        }
        _emit("stamp", stamp)


def _emit(kind: str, body: dict[str, Any]) -> None:
    print(json.dumps({"patchlane": kind, **body}, sort_keys=True), flush=True)


def _fields(check: Check) -> dict[str, Any]:
    above = None if check.bug_above == math.inf else check.bug_above
    signature = check.signature and dict(zip(Signature._fields, check.signature, strict=True))
    return check._asdict() | {"bug_above": above, "signature": signature}
