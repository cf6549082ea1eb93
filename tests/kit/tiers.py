"""What `make test` leaves to `make test-all`: such a test gets the marker ``rest`` when it is collected.

Each test is in exactly one of the two. Engine, Python and torch are every pack's: were they compared as well, a changed
engine would make all packs run. Instead a sample of packs runs each time, and the toys try the engine.
"""

import os
import time

import pytest

from patchlane.base.errors import PatchlaneError
from reproducers.desk.start import mutants
from reproducers.evidence import receipts
from reproducers.evidence.manifest import changed_since
from reproducers.record import mutation
from reproducers.record.schema import ROOT
from reproducers.trial.experiment import Request, expected

SAMPLE = {13, 44}  # the quickest bug and report: two upstreams
TRAINED = {  # short runs of the whole model that `make test` takes
    "test_deepseek_v4_layouts.py",
    "test_watch.py",
    "test_weights_deepseek_v4.py",
}


def covered(pack, folder=ROOT / "receipts"):
    """Whether a CPU receipt in ``folder`` has the expected verdict, with reproducer, patch and pin as they are."""
    try:
        path = receipts.newest(pack, "cpu", folder)
        return (
            path is not None
            and not changed_since(pack, path)
            and receipts.read(path).verdict in expected(pack, Request())
        )
    except PatchlaneError:  # altered or broken off
        return False


def scored(pack, folder=ROOT / "receipts"):
    """Whether a kept score has all mutants in the pack's folder, with its patch and reproducer as they are."""
    try:
        score = mutation.newest(pack, folder)
        named = {one.name for one in score.mutants if one.how == "hand" and one.tested} if score else set()
        return named == {path.stem for path in mutants.paths(pack)} != set()
    except PatchlaneError:  # altered
        return False


def proved(pack):
    """Whether what is kept of the pack holds: its receipt, and the score of its mutants where it has a patch."""
    return covered(pack) and (scored(pack) or not pack.patch.is_file())


def sampled(rows, every, ids=None):
    """Parameters with arms or processes of their own: `make test` takes each ``every``th, `make test-all` all.

    ``ids(number, row)``: the name of one.
    """
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=[pytest.mark.long] * (number % every > 0),
            id=ids(number, row) if ids else None,
        )
        for number, row in enumerate(rows)
    ]


def over():
    """Whether the time by which no test of the rest may begin any more has come; never where none is set."""
    return time.time() > float(os.environ.get("PATCHLANE_TESTS_END", "inf"))


def rests(marks, pack, file):
    """Whether ``make test`` leaves out a test with these markers, of this pack (or None), in the file of this name."""
    if "pack" in marks:
        return (
            pack is None
            or "long" in marks
            or not (pack.number in SAMPLE or ("cpu" in pack.lanes and not covered(pack)))
        )
    return not marks.isdisjoint({"site", "long"}) or ("train" in marks and file not in TRAINED)
