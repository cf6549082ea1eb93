"""The probe of the runner's arms: it watches the tree's executed lines and sends the runner what it measures."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from patchlane.base.files import file_sha256
from reproducers.probe.api import Probe, locate
from reproducers.probe.arm import arguments
from reproducers.probe.arm.arguments import Misuse
from reproducers.probe.arm.channel import Channel
from reproducers.probe.arm.integrity import Integrity
from reproducers.probe.checks import Check, Signature
from reproducers.probe.lanes import kept
from reproducers.probe.stamp import capability, versions
from reproducers.probe.watch import Ranges, Watch


@arguments.checked
class WatchedProbe(Probe):
    """A probe that records the tree's executed lines. The runner judges what it sends.

    ``misused``: the first call that it could not take, for which the runner gives no verdict.
    """

    misused: Misuse | None = None

    @staticmethod
    def options(parser: ArgumentParser, pack: int) -> None:
        """Add the options that only the runner gives."""
        parser.add_argument("--label", default="", help="release or SHA of the tree, for the stamp")
        parser.add_argument("--watch", type=Path, help="JSON: {path in tree: [[first, last line], ...]}")
        parser.add_argument("--channel", type=int, nargs=2, help="descriptors: the run's secret, and its record")
        parser.set_defaults(pack=pack)

    def __init__(self, package: str, args: Namespace) -> None:
        super().__init__(package, args)
        self.watch: Watch | None = None
        self.channel = Channel(*args.channel)
        self.integrity = Integrity(self)

    def open(self) -> None:
        """Send the stamp, even if the tree lacks the package, and begin to watch."""
        tree = None
        try:
            self.tree = tree = locate(self.package, self.args.tree, "--tree")
        finally:
            self._stamp(tree)
        self.watch = Watch(self.tree, self.watched())
        self.watch.start()

    def watched(self) -> Ranges:
        """The lines to watch."""
        ranges: Ranges = json.loads(self.args.watch.read_text())
        return ranges

    def close(self, outcome: str, reason: str, remedy: str) -> None:
        """Send the record's end; its remedy names options of the verb that started this arm."""
        if self.misused:
            outcome, reason, remedy = "different", self.misused.reason, self.misused.remedy
        super().close(outcome, reason, remedy)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()  # NCCL complains at exit otherwise, after the record
        executed: dict[str, Any] = {}
        changed = self.integrity.changed(self.watch)
        if self.watch is not None:
            self.watch.stop()
            executed = self.watch.report()
        if "--tree DIR" in remedy:
            remedy = f"python -m reproducers.run pack{self.args.pack:02} --upstream DIR that holds {self.package}/"
        elif "--needs DIR" in remedy or "header lists" in remedy:
            remedy = "python -m reproducers.doctor"
        self.channel.send("executed", executed)
        end = {"outcome": outcome, "reason": reason, "remedy": remedy, "changed": changed}
        self.channel.send("end", end | {"misused": self.misused and {"measured": self.misused.measured}})
        if self.misused:
            raise SystemExit(1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.misused = Misuse(f"{arguments.place()}: the probe has no p.{name}")
        raise self.misused

    def importing(self, call: Callable[[], Any]) -> Any:
        """As ``Probe.importing``; a signature that cannot be made is the reproducer's fault."""
        try:
            return super().importing(call)
        except TypeError as error:
            if "Signature.__new__()" in str(error):
                *_, last = traceback.extract_tb(error.__traceback__)
                self.misused = Misuse(f"{Path(last.filename).name}:{last.lineno}: probe.{error}")
                raise self.misused from error
            raise

    def _call(self, name: str, call: Callable[[], Any], role: str, limit: str, bug: Any) -> Any:
        exception, message, frame = bug or ("", "", "")
        return super()._call(name, call, role, limit, Raised(exception, message, frame, role))

    def _add(self, check: Check) -> None:
        if any(known.name == check.name for known in self.checks):
            self.misused = Misuse(f"{arguments.place()}: check {check.name!r} is recorded twice")
            raise self.misused
        super()._add(check)
        self.channel.send("check", _fields(check))

    def drawn(
        self,
        name: str,
        measure: Callable[..., float],
        limit: float,
        *,
        space: dict[str, Any],
        count: int,
        reference: str,
        bug_above: float = math.inf,
        unit: str = "",
    ) -> None:
        """As ``Probe.drawn``; says when the simplest bad case is looked for, which can take longer than the cases."""
        calls = 0

        def counted(**case: Any) -> float:
            nonlocal calls
            if (calls := calls + 1) == count + 1:
                print(f"{name}: a drawn case is bad; looking for the simplest one", flush=True)
            return measure(**case)

        more = {"space": space, "count": count, "reference": reference, "bug_above": bug_above, "unit": unit}
        super().drawn(name, counted, limit, **more)  # type: ignore[arg-type]

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
            self.channel.leave()
            value = work(rank)
            if changed := self.integrity.changed(self.watch, rank=True):
                raise RuntimeError(f"code under test changed {', '.join(changed)}")
            return value, self._watch.seen()

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
        self.channel.send("stamp", stamp)


class Raised(Signature):
    """A signature that keeps what was raised, for the runner to compare; without a pattern in a guard."""

    raised: dict[str, Any] | None
    role: str

    def __new__(cls, exception: str, message: str, frame: str, role: str = "") -> Raised:
        made = super().__new__(cls, exception, message, frame)
        made.raised, made.role = None, role
        return made

    def matches(self, error: BaseException) -> bool:
        """As ``Signature.matches``; of no error in a guard."""
        self.raised = {
            "types": [cls.__name__ for cls in type(error).__mro__],
            "message": str(error),
            "files": [Path(frame.filename).as_posix() for frame in traceback.extract_tb(error.__traceback__)],
        }
        return self.role == "bug" and super().matches(error)


def _fields(check: Check) -> dict[str, Any]:
    """A check without its state, and with what its call raised."""
    fields = check._asdict() | {"bug_above": None if check.bug_above == math.inf else check.bug_above}
    del fields["state"]
    if isinstance(check.signature, Raised):
        fields["raised"] = check.signature.raised
        named = dict(zip(Signature._fields, check.signature, strict=True))
        fields["signature"] = named if check.role == "bug" else None
    return fields
