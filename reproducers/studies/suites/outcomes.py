"""A plugin for upstream's pytest: a line of JSON for each thing that happens, so that a crash keeps what was before.

Copied beside the tests and loaded from there, where this project is not on the path. Standard library only. The
variables are read once: upstream's fixtures change the environment.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

TASK = json.loads(os.environ["UPSTREAM_TESTS_TASK"])
OWNER = os.getpid()  # a test may fork, and its child run on into the hooks
LONGEST = 400  # characters of an error that are kept


def _tell(**row: Any) -> None:
    if os.getpid() == OWNER:
        with Path(TASK["rows"]).open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(row) + "\n")


def _said(report: Any) -> str:
    """The last line of an error, the reason of a skip."""
    said = report.longrepr
    if isinstance(said, tuple):
        return str(said[-1])[:LONGEST]
    crash = getattr(said, "reprcrash", None)
    lines = (crash.message if crash else str(said or "")).strip().splitlines() or [""]
    return str(lines[0] if crash else lines[-1]).removeprefix("E").strip()[:LONGEST]


def pytest_collectreport(report: Any) -> None:
    if report.outcome != "passed":
        _tell(collecting=report.nodeid, outcome=report.outcome, error=_said(report))


def pytest_collection_finish(session: Any) -> None:
    _tell(collected=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    _tell(started=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    outcome = report.outcome
    if hasattr(report, "wasxfail"):  # what the mark expects is not what the test did
        outcome = "failed" if outcome == "skipped" else "passed"
    _tell(test=report.nodeid, when=report.when, outcome=outcome, error=_said(report) if outcome != "passed" else "")


def pytest_sessionfinish() -> None:
    tree, imported, foreign = TASK["tree"], [], []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and any(name == root or name.startswith(root + ".") for root in TASK["modules"]):
            inside = os.path.relpath(os.path.realpath(file), os.path.realpath(tree))
            if inside.startswith(".."):
                foreign.append(name)
            elif inside in TASK["patched"]:
                imported.append(inside)
    _tell(finished=True, imported=sorted(set(imported)), foreign=foreign)


def pytest_unconfigure() -> None:
    """Bytecode of what was copied into the scratch folder serves no other process."""
    if sys.pycache_prefix and os.getpid() == OWNER:
        shutil.rmtree(Path(sys.pycache_prefix, *Path(TASK["copy"]).parent.parts[1:]), ignore_errors=True)
