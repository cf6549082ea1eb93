"""The process of a reproducer: its options, its outcome, its exit status."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable

from reproducers.probe.api import Probe
from reproducers.probe.checks import CannotTest, gpu_full, judge


def main(
    reproduce: Callable[[Probe], None],
    *,
    pack: int,
    package: str,
    minimal: Callable[[], None],
    prepare: Callable[[Probe], object] = lambda p: None,
) -> None:
    """Run ``reproduce`` as one arm and exit (see the module's docstring for output and exit status).

    ``minimal``: the bug in at most 15 lines, without the probe: raises where the bug is, returns where it is not.
    ``prepare`` runs before it under ``--minimal`` (stand-ins of the CPU lane, say); ``reproduce`` prepares itself.
    """
    parser, kind = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__), Probe
    parser.add_argument("--tree", type=os.path.abspath, help="folder of the package under test (default: installed)")
    parser.add_argument("--needs", type=os.path.abspath, action="append", default=[], help="... of one that it needs")
    parser.add_argument("--lane", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minimal", action="store_true", help="run minimal() alone; it raises where the bug is")
    if "--watch" in sys.argv:  # an arm of the runner
        from reproducers.probe.arm.watched import WatchedProbe

        kind = WatchedProbe
        if "--census" in sys.argv:
            from reproducers.probe.arm.census.probe import CensusProbe

            kind = CensusProbe
        kind.options(parser, pack)
    args, remedy, said = parser.parse_args(), "", dict[str, logging.LogRecord]()
    if logging.lastResort is not None:  # upstream's log without a handler: each message once, or it buries the results
        logging.lastResort.addFilter(lambda record: said.setdefault(record.getMessage(), record) is record)
    if args.lane == "cpu" and not args.minimal:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # upstream may ask torch for a GPU when it is imported
    del sys.argv[1:], sys.orig_argv[1:]  # to upstream this is a program like any other
    sys.path[:0] = [folder for folder in (args.tree, *args.needs) if folder]
    p = kind(package, args)
    try:
        p.open()
        if args.minimal:
            p.importing(lambda: prepare(p))
            return p.importing(minimal)
        p.importing(lambda: reproduce(p))
        outcome, reason = judge(p.checks)
    except CannotTest as error:
        outcome, reason, remedy = "cannot_test", error.reason, error.remedy
    except Exception as error:
        if args.minimal:
            raise
        traceback.print_exc(file=sys.stdout)
        outcome, reason = "different", f"{type(error).__name__}: {error}".splitlines()[0]
        if full := gpu_full(error):
            outcome, reason, remedy = "cannot_test", full.reason, full.remedy
    p.close(outcome, reason, remedy)
    raise SystemExit({"bug": 0, "healthy": 0, "cannot_test": 77}.get(outcome, 1))
