"""A run in the language of ``git bisect run``: 0 good, 1 bad, 125 cannot be tested."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from reproducers.base.verdicts import Exit, Verdict
from reproducers.record.schema import Pack
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.store import Store


class Answer(SystemExit):
    """What was measured for git bisect; no other way to end says 0 or 1 there."""


def answer(pack: Pack, request: Request) -> Answer:
    """git-bisect's language and nothing else: 0 good, 1 bad, 125 cannot test."""
    try:
        run = execute(pack, request, Store(), lambda arm, line: print(f"[{arm}] {line}", file=sys.stderr))
    except Exception as error:
        print(f"cannot test: {type(error).__name__}: {error}", file=sys.stderr)
        return Answer(int(Exit.BISECT_SKIP))
    answers = {Verdict.FIXED_UPSTREAM: Exit.OK, Verdict.REPRODUCED: Exit.CONTRADICTED}
    return Answer(int(answers.get(run.ruling.verdict, Exit.BISECT_SKIP)))


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turn every end that is no answer into 125: git bisect would take any other code for a bad commit."""
    try:
        yield
    except SystemExit as ended:
        if isinstance(ended, Answer) or ended.code == Exit.INTERRUPTED:
            raise
        raise SystemExit(int(Exit.BISECT_SKIP)) from None
