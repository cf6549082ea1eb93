"""The probe of a census arm: the reproducer runs as in any arm, then the kept calls are made again."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import types
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproducers.probe.arm.census import AS, MADE, UNBOUND
from reproducers.probe.arm.watched import WatchedProbe
from reproducers.probe.watch import Ranges

if TYPE_CHECKING:
    from reproducers.probe.arm.census.calls import Call, Calls
    from reproducers.probe.arm.census.public import ClassState

FLOOR_S, SHARE = 20.0, 1.0  # processor time of making calls again: so long, or so much of the reproducer's own
PATIENCE = 4  # times as long where the facts to take are given
PACKAGE = "the package's sources"
Facts = dict[str, dict[str, Any]]


class CensusProbe(WatchedProbe):
    """``--census`` names a file of facts {call: [fact]} to take, or holds null for all that there is time for."""

    @staticmethod
    def options(parser: ArgumentParser, pack: int) -> None:
        WatchedProbe.options(parser, pack)
        parser.add_argument("--census", type=Path)

    def __init__(self, package: str, args: argparse.Namespace) -> None:
        super().__init__(package, args)
        self.calls: Calls | None = None
        self.wanted: dict[str, list[str]] | None = json.loads(args.census.read_text())
        self.files = list[str](json.loads(args.watch.read_text()))
        self.classes: dict[str, ClassState] = {}
        self.begun = time.process_time()

    def watched(self) -> Ranges:
        """None: another arm has watched them."""
        return {}

    def upstream(self, name: str) -> types.ModuleType:
        self._start()
        module = super().upstream(name)
        self._start()
        if self.calls is None:
            return module
        from reproducers.probe.arm.census import public

        for file, found in public.modules(self.files).items():
            if file not in self.classes:
                self.classes[file] = public.class_state(found)
        return module

    def _start(self) -> None:
        """See calls and imports, once torch is imported: without it there is nothing to count."""
        if self.calls is None and "torch" in sys.modules:
            from reproducers.probe.arm.census.calls import Calls

            self.calls = Calls(self.tree, self.files, self.wanted)
            self.calls.start()

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def ranks(self, world: int, work: Callable[[int], Any]) -> list[Any]:
        """What ranks' calls did joins this arm's facts; the first makes those again that need no other rank."""

        def counted(rank: int) -> tuple[Any, list[Facts]]:
            begun = time.process_time()
            value, name = work(rank), f"rank {rank} of {world}: "
            if self.calls is None:
                return value, []
            self.calls.stop()
            took = [{f"{name}{call.key}": call.facts for call in self._kept()}]
            if rank == 0:
                from reproducers.probe.arm.census.modes import Alone

                with contextlib.suppress(Exception):
                    took.append(self._files())
                with contextlib.suppress(Exception), Alone():
                    self._again(time.process_time() - begun, took.append, name)
            return value, took

        results = super().ranks(world, counted)
        for _, took in results:
            for facts in took:
                self.send(facts)
        return [value for value, _ in results]

    def close(self, outcome: str, reason: str, remedy: str) -> None:
        """Take the facts, then end as every arm."""
        if self.calls is not None:
            self.calls.stop()
            took = time.process_time() - self.begun
            with contextlib.suppress(Exception):
                self.send({call.key: call.facts for call in self._kept()})
                self.send(self._files())
            if failed := self._again(took, self.send):
                outcome, reason, remedy = "different", failed, ""
        super().close(outcome, reason, remedy)

    def _kept(self) -> list[Call]:
        return [call for call in self.calls.kept.values() if call.facts] if self.calls else []

    def _files(self) -> Facts:
        """What the touched files offer, and what they hold by now."""
        from reproducers.probe.arm.census import public

        found: Facts = {PACKAGE: public.private(self.tree, self.files)}
        exported = public.exported(self.tree, self.files)
        imported = public.modules(self.files)
        for file in self.files:
            found[file] = {UNBOUND: public.unbound(self.tree / file, imported.get(file))}
        for file, module in imported.items():
            found[file] |= public.facts(module, exported[file], self.classes.get(file, {}), self.wanted is not None)
        for file, took in self.calls.imports.items() if self.calls else ():  # of one that is gone by now too
            found.setdefault(file, {}).update(took)
        return found

    def _again(self, took: float, send: Callable[[Facts], None], name: str = "") -> str:
        """Make the calls again, by turns: next is the one that has taken the least time. ``name`` begins their keys.

        Why it did not go to its end: the call that left the GPU failing.
        """
        from reproducers.probe.arm.census.again import Again

        until = time.process_time() + max(FLOOR_S, SHARE * took) * (PATIENCE if self.wanted is not None else 1)
        ways = list[tuple[str, Again]]()
        for call in self._kept():
            key = f"{name}{call.key}"
            wanted = None if self.wanted is None else set(self.wanted.get(key, ()))
            if wanted == set() or time.process_time() > until:
                continue
            again = None
            if call.target is not None:
                with contextlib.suppress(Exception):
                    again = Again(call, self.tree, self.lane, wanted, self.seed)
                    again.until = until
                    if again.made == AS or not name:  # else it needs the other ranks
                        again.ask()
                        ways.append((key, again))
            if again or not call.backward:
                send({key: {MADE: again.made if again else "otherwise: its arguments are not copied"}})
        while live := [row for row in ways if row[1].left]:
            key, again = min(live, key=lambda row: row[1].turn)
            send({key: again.next()})
            if again.broken:
                return f"the GPU fails after {key}"
        return ""

    def send(self, facts: Facts) -> None:
        self.channel.send("census", facts)
