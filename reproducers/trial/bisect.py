"""Answer ``git bisect run`` by exit status: 0 good, 1 bad, 125 cannot test."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from patchlane.base.exits import Exit
from reproducers.base.verdicts import Verdict
from reproducers.record.schema import Pack
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.store import Store


class Answer(SystemExit):
    """The measured answer; under ``answering`` only this ends with 0 or 1."""


def answer(pack: Pack, request: Request) -> Answer:
    """Run the pack's pristine arm and turn its verdict into the answer. Every exception becomes 125."""
    try:
        run = execute(pack, request, Store(), lambda arm, line: print(f"[{arm}] {line}", file=sys.stderr))
    except Exception as error:
        print(f"cannot test: {type(error).__name__}: {error}", file=sys.stderr)
        return Answer(int(Exit.BISECT_SKIP))
    answers = {Verdict.FIXED_UPSTREAM: Exit.OK, Verdict.REPRODUCED: Exit.CONTRADICTED}
    return Answer(int(answers.get(run.ruling.verdict, Exit.BISECT_SKIP)))


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turn every exit that is neither answer nor interrupt into 125: git bisect takes 1 or 2 for a bad commit."""
    try:
        yield
    except SystemExit as ended:
        if isinstance(ended, Answer) or ended.code == Exit.INTERRUPTED:
            raise
        raise SystemExit(int(Exit.BISECT_SKIP)) from None
