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

from reproducers.probe.arm.census import HOLDS, MADE
from reproducers.probe.arm.watched import WatchedProbe
from reproducers.probe.watch import Ranges

if TYPE_CHECKING:
    from reproducers.probe.arm.census.calls import Call, Calls

FLOOR_S, SHARE = 10.0, 1.0  # processor time of making calls again: so long, or so much of the reproducer's own
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
        self.classes: dict[str, dict[str, int]] = {}
        self.begun = time.process_time()

    def watched(self) -> Ranges:
        """None: another arm has watched them."""
        return {}

    def upstream(self, name: str) -> types.ModuleType:
        module = super().upstream(name)
        if "torch" not in sys.modules:  # without it there is nothing to count
            return module
        from reproducers.probe.arm.census import public
        from reproducers.probe.arm.census.calls import Calls

        if self.calls is None:
            self.calls = Calls(self.tree, self.files)
            self.calls.start()
        for file, found in public.modules(self.files).items():
            if file not in self.classes:
                self.classes[file] = public.class_state(found)
        return module

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def ranks(self, world: int, work: Callable[[int], Any]) -> list[Any]:
        """What each rank's calls did joins this arm's facts, the first rank's last, so that those of others stay."""

        def counted(rank: int) -> tuple[Any, Facts]:
            value = work(rank)
            facts = {f"rank {rank} of {world}: {call.key}": call.facts for call in self._kept()}
            return value, facts

        results = super().ranks(world, counted)
        for _, facts in results:
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
            self._again(took)
        super().close(outcome, reason, remedy)

    def _kept(self) -> list[Call]:
        return [call for call in self.calls.kept.values() if call.facts] if self.calls else []

    def _files(self) -> Facts:
        """What the touched files offer, and what they hold by now."""
        from reproducers.probe.arm.census import public

        found: Facts = {PACKAGE: public.private(self.tree, self.files)}
        for file, module in public.modules(self.files).items():
            tensors, entries = public.held(module)
            now, before = public.class_state(module), self.classes.get(file, {})
            found[file] = {
                "offers": public.offers(module),
                HOLDS: tensors,
                "entries held at the end": entries,
                "class attributes changed": sorted(name for name in now if before and now[name] != before.get(name)),
            }
        return found

    def _again(self, took: float) -> None:
        """Make the calls again, in three rounds: what changes no input first."""
        from reproducers.probe.arm.census.again import Again

        until = time.process_time() + max(FLOOR_S, SHARE * took) * (PATIENCE if self.wanted is not None else 1)
        ways = list[tuple[str, Again]]()
        for call in self._kept():
            wanted = None if self.wanted is None else set(self.wanted.get(call.key, ()))
            if wanted == set() or time.process_time() > until:
                continue
            again = None
            if call.target is not None:
                with contextlib.suppress(Exception):
                    again = Again(call, self.tree, self.lane, wanted, self.seed)
                    ways.append((call.key, again))
            if again or not call.backward:
                self.send({call.key: {MADE: again.made if again else "otherwise: its arguments are not copied"}})
        rounds = [(way, name) for name in ("modes", "inputs", "drawn") for way in ways]
        for number, ((key, again), name) in enumerate(rounds):
            now = time.process_time()
            again.until = now + (until - now) / (len(rounds) - number)
            with contextlib.suppress(Exception):
                getattr(again, name)()
            self.send({key: again.facts})
            again.facts = {}

    def send(self, facts: Facts) -> None:
        self.channel.send("census", facts)
