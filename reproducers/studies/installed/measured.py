"""What digests cannot decide, measured: the reproducer's pristine arm on a copy of the installed package."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

from patchlane.base.files import temporary
from patchlane.judged.answers import Answer, State
from patchlane.present.environment import Environment
from reproducers.base.verdicts import Verdict
from reproducers.record.schema import Pack, load_named
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.pins import UPSTREAM
from reproducers.upstream.store import Store

STATES: dict[Verdict, State] = {Verdict.REPRODUCED: "buggy", Verdict.FIXED_UPSTREAM: "fixed"}

REASON = 200  # characters of a verdict's reason, which lists every check that shows the bug


def all_measured(answers: list[Answer], environment: Environment) -> list[Answer]:
    """The answers with those measured that a run can decide."""
    store = Store()
    return [measured(load_named([a.pack])[0], a, environment, store) if a.measurable else a for a in answers]


def measured(pack: Pack, answer: Answer, environment: Environment, store: Store) -> Answer:
    """The answer of a run on this host's CPU, with the needs of the pack's live pin; another verdict decides nothing.

    No receipt is written: the tree is no release's, and belongs to this environment alone.
    """
    with temporary() as scratch:
        folder = scratch / answer.distribution
        copied(environment.packages[pack.upstream.package], folder)
        request = Request(UPSTREAM, "cpu", "pristine", upstream=folder)
        run = execute(pack, request, store, lambda arm, line: None)
    state = STATES.get(run.ruling.verdict)
    why = textwrap.shorten(run.ruling.reason, REASON, placeholder=" …")
    said = f"{run.ruling.verdict.value} on the installed code, run here on the CPU: {why}"
    if state is None:
        remedy = run.ruling.remedy or f"python -m reproducers.run {pack.id} --at VERSION -v"
        return replace(answer, reason=said, remedy=remedy, measurable=False)
    remedy = f"see {pack.folder / 'notes.md'}" if state == "buggy" else ""
    return replace(answer, state=state, by="run", reason=said, remedy=remedy, measurable=False)


def copied(portions: list[Path], target: Path) -> None:
    """A package as it would be imported, with the libraries that its wheel put beside it, in an empty folder."""
    for portion in reversed(portions):  # the first of a namespace's folders wins
        for place in (portion, portion.with_name(f"{portion.name}.libs")):
            if place.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".git")
                shutil.copytree(place, target / place.name, ignore=ignored, dirs_exist_ok=True)
